"""Augmentations on the device, a batch at a time: `Loader(transform=Augment(RandomResizedCrop(224), RandomFlip()))`.

Nothing here waits for the device or copies to it from the host, but for a few constants when a device is first seen.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from decodeonce.loader.batch import Batch
from decodeonce.loader.order import derive_key
from decodeonce.loader.settings import StoreLike, check_whole
from decodeonce.splitmix import FACTOR_1, FACTOR_2, GOLDEN
from decodeonce.store import Store, open_store

IMAGENET: tuple[tuple[float, ...], tuple[float, ...]] = (
    (0.485 * 255, 0.456 * 255, 0.406 * 255),
    (0.229 * 255, 0.224 * 255, 0.225 * 255),
)

_BITS = 24  # as many as a float32 holds
_TRIES = 10
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def mix_words(words: Tensor) -> Tensor:
    """`decodeonce.splitmix.mix` on a device: an int64 tensor stands for 64-bit words of the same bits."""
    words = (words ^ _shift_right(words, 30)) * _signed(FACTOR_1)
    words = (words ^ _shift_right(words, 27)) * _signed(FACTOR_2)
    return words ^ _shift_right(words, 31)


@dataclass(frozen=True, eq=False)
class Draws:
    """One step's random numbers for the rows of a batch: those of a row are a function of `key` and the row alone.

    key: 64 bits. rows: (B,) int64.
    """

    key: int
    rows: Tensor

    def uniform(self, count: int) -> Tensor:
        """(B, count) float32 in [0, 1), multiples of 2**-24; a second call gives the same numbers.

        Number i of a row is made of the upper bits of `derive_key(seed, epoch, step, row, i)`.
        """
        words = mix_words(self.rows ^ _signed(self.key + GOLDEN)) + _signed(GOLDEN)
        words = mix_words(words[:, None] ^ torch.arange(count, device=words.device))
        return _shift_right(words, 64 - _BITS).to(torch.float32) * 2.0**-_BITS


class Step(Protocol):
    """One augmentation; any callable like it is one."""

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        """The new pictures (B, H, W, C) of these (B, H, W, C), which are not written to."""


class Augment:
    """A transform for a Loader: the steps in turn, on images (B, H, W, C), each with random numbers of its own.

    The batch it returns has images (B, C, H, W) in the channels_last memory format, as convolutional networks take
    them, of the last step's dtype. seed: any whole number. What happens to a row follows from seed, epoch, row and the
    steps up to that point; of batch, rank and world size at most the last bits of a resized float32 may depend.
    """

    def __init__(self, *steps: Step, seed: int = 0) -> None:
        for step in steps:
            if isinstance(step, type) or not callable(step):
                raise ValueError(f"a step is {step!r}, expected one like RandomFlip()")
        check_whole(None, seed=seed)
        self._steps = steps
        self._seed = seed

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its pictures augmented."""
        images = batch.images
        for number, step in enumerate(self._steps):
            images = step(images, Draws(derive_key(self._seed, batch.epoch, number), batch.rows))
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, images=images)


@dataclass(frozen=True)
class _Crop:
    """A size, checked."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        _pair(self.size)


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """The middle of each picture, a view; where it is off by half a pixel, it lies as torchvision's does.

    size: pixels, one number or (height, width). Raises ValueError for one larger than the pictures.
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = _fitting(self.size, images)
        top, left = round((images.shape[1] - height) / 2.0), round((images.shape[2] - width) / 2.0)
        return images[:, top : top + height, left : left + width]


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """A window of each picture, anywhere in it with equal probability; any dtype.

    size: pixels, one number or (height, width). Raises ValueError for one larger than the pictures.
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = _fitting(self.size, images)
        top, left = draws.uniform(2).unbind(1)
        top = (top * (images.shape[1] - height + 1)).to(torch.int64)
        left = (left * (images.shape[2] - width + 1)).to(torch.int64)
        # All windows as a view, of which one a picture is copied: 0.03 ms a picture of 256x256 on two cores, where
        # indexing by rows and columns takes 0.22.
        windows = images.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
        return windows[torch.arange(len(images), device=images.device), top, left]


@dataclass(frozen=True)
class RandomResizedCrop:
    """A window of random area and shape of each picture, resized; windows are chosen as torchvision does.

    Gives float32 levels 0..255, not rounded: bilinear with antialiasing, Pillow's `crop(box).resize(size, BILINEAR)`
    but for its rounding; where torch may multiply float32 as TF32, off by fractions of a level. size: pixels, one
    number or (height, width). scale: least and greatest share of the area. ratio: least and greatest width / height,
    equally likely on a logarithmic scale.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = field(default=(0.08, 1.0), kw_only=True)
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3), kw_only=True)

    def __post_init__(self) -> None:
        _pair(self.size)
        _check_range("scale", self.scale, 1)
        _check_range("ratio", self.ratio, math.inf)

    def boxes(self, draws: Draws, height: int, width: int) -> Tensor:
        """(B, 4) whole numbers: top, left, height and width of the windows in pictures of this height and width.

        After torchvision's RandomResizedCrop.get_params: the first of ten sizes that fits, else a central window.
        """
        # In doubles, hardly any size is so close to a half that one device rounds it up and another down.
        uniform = draws.uniform(2 * _TRIES + 2).to(torch.float64)
        low, high = self.scale
        areas = (low + (high - low) * uniform[:, :_TRIES]) * (height * width)
        low, high = map(math.log, self.ratio)
        ratios = (low + (high - low) * uniform[:, _TRIES:-2]).exp()
        sizes = torch.stack([(areas / ratios).sqrt(), (areas * ratios).sqrt()], 2).round()
        whole = _constant((height, width), torch.float64, uniform.device)
        low, high = self.ratio
        widest = min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))
        central = _constant(widest, torch.float64, uniform.device).expand(len(sizes), 1, 2)
        fits = torch.nn.functional.pad(((sizes >= 1) & (sizes <= whole)).all(2), (0, 1), value=True)
        first = fits.to(torch.int32).argmax(1)[:, None]  # of several that are greatest it is the first
        size = torch.cat([sizes, central], 1).gather(1, first[:, :, None].expand(-1, 1, 2))[:, 0]
        spare = whole - size
        corner = torch.where(first == _TRIES, spare / 2, uniform[:, -2:] * (spare + 1)).floor()
        return torch.cat([corner, size], 1)

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        (batch, height, width, channels), (out_height, out_width) = images.shape, _pair(self.size)
        top, left, box_height, box_width = self.boxes(draws, height, width).to(torch.float32).unbind(1)
        rows = _bilinear(top, box_height, out_height, height)
        columns = _bilinear(left, box_width, out_width, width).transpose(1, 2)
        # Lines are put channel by channel when they become floats anyway, so that no float is moved between the two
        # products. On two cores that takes 0.98 ms a picture of 256x256, 0.95 of it in the products; 1.00 to 1.07 with
        # lines rearranged in between, columns first or all transposed; 1.64 by gathering five taps.
        lines = images.transpose(2, 3).to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        resized = torch.bmm(rows, lines.view(batch, height, channels * width))
        resized = torch.bmm(resized.view(batch, out_height * channels, width), columns)
        return resized.view(batch, out_height, channels, out_width).transpose(2, 3)


@dataclass(frozen=True)
class RandomFlip:
    """Each picture mirrored left to right with probability p; any dtype."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p is {self.p!r}, expected a probability, 0 to 1")

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        flipped = draws.uniform(1)[:, :, None, None] < self.p
        # 0.05 ms a picture of 224x224 on two cores; a gather, which reads each once, takes 0.1
        return torch.where(flipped, images.flip(2), images)


class Normalize:
    """(level - mean) / std of each channel, computed in float32.

    Args:
        statistics: A store, open or its path, whose mean and std are used, or "imagenet".
        dtype: Type of the result: float32, bfloat16 or float16.

    Attributes:
        mean, std: What was found, per channel, 0..255.

    Raises:
        ValueError: If images have another number of channels, or a std is 0.
        StoreError: If the store is damaged.
    """

    def __init__(self, statistics: StoreLike, *, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}, expected {', '.join(map(str, _DTYPES))}")
        self.dtype, (self.mean, self.std) = dtype, IMAGENET
        if statistics != "imagenet":
            manifest = (statistics if isinstance(statistics, Store) else open_store(statistics)).manifest
            self.mean, self.std = manifest.pixel_mean, manifest.pixel_std
        if not all(self.std):
            raise ValueError(f"{statistics}: the std of its channels is {self.std}, expected none of 0 to divide by")

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        if images.shape[3] != len(self.mean):
            raise ValueError(f"pictures of {images.shape[3]} channels, expected {len(self.mean)}, as many as means")
        scale = _constant(tuple(1 / s for s in self.std), torch.float32, images.device)
        shift = _constant(tuple(-m / s for m, s in zip(self.mean, self.std, strict=True)), torch.float32, images.device)
        # One pass over memory: torch computes in float32, the inputs' common dtype, and casts as it writes
        result = torch.empty(images.shape, dtype=self.dtype, device=images.device)
        return torch.addcmul(shift, images, scale, out=result)


def _bilinear(first: Tensor, length: Tensor, out: int, size: int) -> Tensor:
    """Weights (B, out, size) that resize the `length` (B,) pixels from `first` (B,) on to `out`, of `size` there are.

    Pillow's: a triangle that widens as the picture shrinks, cut off at the window's edges (src/libImaging/Resample.c,
    precompute_coeffs).
    """
    scale = (length / out)[:, None]
    middles = torch.arange(0.5, max(out, size), dtype=torch.float32, device=first.device)
    centres = first[:, None] + middles[:out] * scale
    distances = (middles[:size] - centres[:, :, None]).div_(scale.clamp(min=1)[:, :, None]).abs_()
    inside = (middles[:size] > first[:, None]) & (middles[:size] < (first + length)[:, None])
    weights = distances.neg_().add_(1).clamp_(min=0).mul_(inside[:, None])
    return weights.div_(weights.sum(2, keepdim=True))


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # The copy is waited for, so that any stream may use the constant from then on
    return torch.tensor(values, dtype=dtype, device=device)


def _signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Zeros come in from the left; `>>` would repeat the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    pair = size if isinstance(size, tuple) else (size, size)
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in pair):
        raise ValueError(f"size is {size!r}, expected a whole number of pixels or (height, width), 1 or more")
    return pair


def _fitting(size: int | tuple[int, int], images: Tensor) -> tuple[int, int]:
    height, width = _pair(size)
    if height > images.shape[1] or width > images.shape[2]:
        raise ValueError(f"a crop of {height}x{width} is larger than pictures of {images.shape[1]}x{images.shape[2]}")
    return height, width


def _check_range(name: str, values: tuple[float, float], most: float) -> None:
    if len(values) != 2 or not 0 < values[0] <= values[1] <= most or math.isinf(values[1]):
        bound = "" if math.isinf(most) else f", {most} at most"
        raise ValueError(f"{name} is {values!r}, expected two numbers above 0, the greater one second{bound}")
