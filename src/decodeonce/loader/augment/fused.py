"""Crops, flips and Normalize of a batch on an accelerator in one kernel, and the kernels that draw for them.

torch launches a kernel for each operation, 162 for a chain of crop, flip and Normalize. Each of those for images passes
over memory, 2.3 GB for 256 images, of which 0.13 GB are the images themselves. Where Triton's kernels cannot run,
torch's code does the same.

Triton 3.9 warns if a launch leaves `enable_fp_fusion` open.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from decodeonce.loader.planes import Planes

# The types of devices that Triton compiles for.
TYPES = ["cuda", "xpu"]
CHANNELS = 3
# A pixel of the result depends on at most so many lines and columns. With more, the kernel would be long.
MOST_TAPS = 16
PIXELS = 256  # that one program of the kernel computes

_problems: dict[torch.device, str] = {}  # devices on which the kernel has failed


def why_not(device: torch.device) -> str:
    """Why the kernel does not run on a device; empty if it does."""
    if device.type not in TYPES:
        return f"Triton has no kernels for the device {device.type}"
    if find_spec("triton") is None:
        return "Triton is not installed; it comes with torch's builds for CUDA, ROCm and XPU"
    return _problems.get(device, "")


def choice(device: torch.device) -> dict[str, str]:
    """What augments images on a device, "triton" or "torch", and why; for Loader.stats()."""
    if why := why_not(device):
        return {"kernel": "torch", "why": why}
    return {"kernel": "triton", "why": "crops, flips, Normalize, colors and blur of uint8 images run as few kernels"}


def either(device: torch.device, launch: Callable[[], Tensor], otherwise: Callable[[], Tensor]) -> Tensor:
    """What `launch` returns, or `otherwise` on a device where kernels do not run. If one fails, none runs any more."""
    if why_not(device):
        return otherwise()
    try:
        return launch()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of every kind: Triton needs a C compiler, a driver and a cache that it can write
        problem = f"{type(error).__name__}: {error}"
        _problems[device] = f"Triton's kernel failed with {problem}"
        advice = "Augment uses torch instead, which takes longer; the images are nearly the same"
        warnings.warn(f"Triton's kernel failed on {device}, so {advice}. {problem}", stacklevel=2)
        return otherwise()


def uniform(rows: Tensor, word: int, count: int) -> Tensor:
    """The numbers of `Draws.uniform` for int64 rows (B,) and the int64 with which they are hashed."""
    from decodeonce.loader.augment.kernel import draw_uniform  # not every torch has Triton

    out = torch.empty((len(rows), count), dtype=torch.float32, device=rows.device)
    with on_device(rows.device):
        draw_uniform[(-(-out.numel() // PIXELS),)](
            rows.contiguous(), out, word, len(rows), count, BLOCK=PIXELS, enable_fp_fusion=True
        )
    return out


def windows(rows: Tensor, word: int, limits: Tensor, tries: int) -> Tensor:
    """The windows of `RandomResizedCrop.windows`, with the limits of `draw_windows`."""
    from decodeonce.loader.augment.kernel import draw_windows  # not every torch has Triton

    out = torch.empty((len(rows), 4), dtype=torch.float64, device=rows.device)
    lanes = 1 << tries.bit_length()
    with on_device(rows.device):
        # A product and a sum are rounded one by one, as on a CPU, because a size is the result.
        draw_windows[(len(rows),)](
            rows.contiguous(), limits, out, word, TRIES=tries, LANES=lanes, enable_fp_fusion=False
        )
    return out


@dataclasses.dataclass(frozen=True)
class Moves:
    """Where a pixel (y, x) comes from: (top + y, left + sign * x). Each is a number, or (B,) for a batch."""

    top: float | Tensor = 0
    left: float | Tensor = 0
    sign: float | Tensor = 1

    def crop(self, top: int | Tensor, left: int | Tensor) -> Moves:
        """The same after a crop."""
        return Moves(self.top + top, self.left + self.sign * left, self.sign)

    def mirror(self, chosen: Tensor, width: int) -> Moves:
        """The same after the chosen images (B,) of this width are mirrored."""
        mirrored = chosen.to(torch.float32)
        return Moves(self.top, self.left + self.sign * mirrored * (width - 1), self.sign * (1 - 2 * mirrored))


@dataclasses.dataclass(frozen=True)
class Chain:
    """Images on an accelerator, and what the kernel is still to do to them, in this order.

    Args:
        images: uint8 (B, H, W, 3).
        shape: Shape of an image after the work.
        dtype: dtype of an image after the work.
        planes: How `images` hold their pixels, uint8 (B, bytes); None: as they are.
        work: The same work as functions of all images, in case that the kernel fails.
        read: Where the pixels come from that the resize reads.
        windows: The windows that are resized, (B, 4); None without a resize.
        resized: Height and width after the resize.
        taps: The most lines and columns that a resized pixel depends on.
        moves: Where pixels come from after the resize.
        factors: Scale and shift of Normalize, each (3,).
    """

    images: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    planes: Planes | None = None
    work: tuple[Callable[[Tensor], Tensor], ...] = ()
    read: Moves = Moves()
    windows: Tensor | None = None
    resized: tuple[int, int] = (1, 1)
    taps: tuple[int, int] = (1, 1)
    moves: Moves = Moves()
    factors: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, images: Tensor, planes: Planes | None = None) -> Chain | None:
        """The images of a batch, to which nothing is to be done yet; None if the kernel cannot take them."""
        shape = planes.shape if planes else tuple(images.shape[1:])
        if why_not(images.device) or images.dtype != torch.uint8 or shape[2] != CHANNELS:
            return None
        return cls(images, shape, images.dtype, planes)

    def crop(self, top: int | Tensor, left: int | Tensor, height: int, width: int) -> Chain:
        """Add a crop without a resize; `top` and `left` are numbers, or (B,)."""
        return dataclasses.replace(self, shape=(height, width, CHANNELS), moves=self.moves.crop(top, left))

    def mirror(self, chosen: Tensor) -> Chain:
        """Add a flip of the chosen images, bool (B,)."""
        return dataclasses.replace(self, moves=self.moves.mirror(chosen, self.shape[1]))

    def resize(self, windows: Callable[[], Tensor], height: int, width: int) -> Chain | None:
        """Add a resize of windows (B, 4); None if there is one already, or it shrinks the images too much.

        Planes are resized before they become RGB, so this must be the first work on them.
        """
        if self.planes and self.work:
            return None
        taps = math.ceil(2 * max(1.0, self.shape[0] / height)), math.ceil(2 * max(1.0, self.shape[1] / width))
        if self.windows is not None or self.dtype != torch.uint8 or max(taps) > MOST_TAPS:
            return None
        return dataclasses.replace(
            self,
            shape=(height, width, CHANNELS),
            read=self.moves,
            windows=windows(),
            resized=(height, width),
            taps=taps,
            moves=Moves(),
        )

    def normalize(self, scale: Tensor, shift: Tensor, dtype: torch.dtype) -> Chain | None:
        """Add a normalization; None if there is one already."""
        if self.factors is not None:
            return None
        return dataclasses.replace(self, factors=(scale, shift), dtype=dtype)

    def done(self) -> Tensor:
        """Do the work, and return the images."""
        images = self.images
        if not self.work:
            return self.planes.unpack(images) if self.planes else images
        return either(images.device, self._launch, self._replay)

    def _replay(self) -> Tensor:
        images = self.images
        for apply in self.work:
            images = apply(images)
        return images

    def _launch(self) -> Tensor:
        from decodeonce.loader.augment.kernel import move_pixels  # not every torch has Triton

        images, device = self.images, self.images.device
        out = torch.empty((len(images), *self.shape), dtype=self.dtype, device=device)
        height, width, _ = self.planes.shape if self.planes else images.shape[1:]
        if images.stride()[1:] != ((1,) if self.planes else (width * CHANNELS, CHANNELS, 1)):
            images = images.contiguous()
        read, moves = self.read, self.moves
        each = [read.top, read.left, read.sign, moves.top, moves.left, moves.sign]
        numbers = [
            one.to(torch.float32)
            if isinstance(one, Tensor)
            else constant((one,), torch.float32, device).expand(len(out))
            for one in each
        ]
        stacked = torch.stack(numbers, 1)
        windows = stacked if self.windows is None else self.windows
        scale, shift = self.factors or (stacked, stacked)
        grid = (len(out), -(-math.prod(self.shape[:2]) // PIXELS))
        given = images, images.stride(0), height, width, windows, stacked, scale, shift, out
        pixels = self.planes.pixels if self.planes else "rgb"
        taps_y, taps_x = self.taps
        forms = {"PIXELS": pixels, "RESIZE": self.windows is not None, "NORMALIZE": self.factors is not None}
        sizes = {"TAPS_Y": taps_y, "TAPS_X": taps_x, "BLOCK": PIXELS}
        with on_device(device):
            move_pixels[grid](*given, *self.resized, *self.shape[:2], **forms, **sizes, enable_fp_fusion=True)
        return out


@cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of `values` on the device. Each constant is copied there only once."""
    # torch.tensor waits for the copy, so any stream can use the constant afterwards.
    return torch.tensor(values, dtype=dtype, device=device)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make this device the current one, on which Triton launches kernels; the host, in tests, has no index."""
    if device.index is None:
        return nullcontext()
    current: AbstractContextManager[object] = torch.get_device_module(device).device(device)
    return current
