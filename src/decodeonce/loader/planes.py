"""Images of a batch as planes Y, U and V, which take half the bytes of RGB. See `Yuv420` of store/pixels.py.

A crop that resizes works on the channels V, Y, U of its window, because resizing and converting can then be done on
bytes, in the cache of a processor. In this order, each of R, G and B depends only on neighbors in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from decodeonce.store.layout import PixelsName, image_bytes
from decodeonce.store.pixels import Pixels

# 64 R, G and B are sums of a channel of (V, Y, U) with factors, of the next and the previous one, and a number; from
# docs/reference/format.md, with 128 taken from U and V, and half of 64 added.
_OWN, _NEXT, _LAST = (90, 64, 113), (64, -22, 0), (0, -46, 64)
_ADDED = (32 - 128 * 90, 32 + 128 * (22 + 46), 32 - 128 * 113)


@dataclass(frozen=True)
class Planes:
    """How rows of bytes hold images: a plane Y, then U and V of half the height and width.

    With ``Loader(pixels="stored")``, a batch of a yuv420 store has one as ``batch.planes``, and a batch of a bc4 store
    its subclass for blocks, which is not made by name.

    Attributes:
        height: Height of an image in pixels.
        width: Width of an image in pixels.

    Example:
        >>> planes = Planes(256, 256)
        >>> planes.unpack(torch.full((8, 98304), 128, dtype=torch.uint8)).shape
        torch.Size([8, 256, 256, 3])
    """

    height: int
    width: int
    pixels: ClassVar[PixelsName] = "yuv420"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image, (H, W, 3)."""
        return self.height, self.width, 3

    def unpack(self, rows: Tensor) -> Tensor:
        """Return RGB images.

        Args:
            rows: uint8 (B, H * W * 3 / 2), on any device; for the blocks of a bc4 store, (B, H * W * 3 / 4).

        Returns:
            Tensor: uint8 (B, H, W, 3), the same values as ``open_store(...).images``.

        Raises:
            ValueError: If the rows have another shape or dtype.
        """
        nbytes = image_bytes(self.pixels, self.shape)
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != nbytes:
            found, expected = f"{rows.dtype} {tuple(rows.shape)}", f"uint8 (rows, {nbytes})"
            raise ValueError(f"the rows are {found}, expected {expected} for images of {self.height}x{self.width}")
        return to_rgb(self.channels(rows))

    def channels(self, rows: Tensor) -> Tensor:
        """Return the channels V, Y, U of whole images, uint8 (B, H, W, 3)."""
        rows = self.planes(rows)
        count, size = self.height * self.width, (len(rows), self.height // 2, 2, self.width // 2, 2)
        out = torch.empty((*size, 3), dtype=torch.uint8, device=rows.device)
        out[..., 1] = rows[:, :count].view(size)
        for channel, start in ((2, count), (0, count + count // 4)):
            out[..., channel] = rows[:, start : start + count // 4].view(len(rows), size[1], 1, size[3], 1)
        return out.view(len(rows), *self.shape)

    def planes(self, rows: Tensor) -> Tensor:
        """Return the planes of images in rows, uint8 (B, H * W * 3 / 2)."""
        return rows

    def window(self, row: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
        """Return the channels V, Y, U of a window of an image in host memory, uint8 (height, width, 3)."""
        up, before = top % 2, left % 2  # of the pixel of the window within the four that share U and V
        edges = top - up, left - before, (top + height + 1) // 2 * 2, (left + width + 1) // 2 * 2
        luma, *chroma = self.parts(row.numpy(), *edges)
        out = np.empty((height, width, 3), np.uint8)
        out[..., 1] = luma[up : up + height, before : before + width]
        # Repeat each number: as the halves of a number of twice the size.
        wide = [
            (part.astype(np.uint16) * np.uint16(0x101)).view(np.uint8)[:, before : before + width] for part in chroma
        ]
        for first in (0, 1):  # lines of the window with the same parity
            skipped = (up + first) // 2
            lines = slice(skipped, skipped + len(range(first, height, 2)))
            out[first::2, :, 2], out[first::2, :, 0] = (part[lines] for part in wide)
        return torch.from_numpy(out)

    def parts(self, row: Pixels, top: int, left: int, bottom: int, right: int) -> list[Pixels]:
        """Return Y and, of half the height and width, U and V of a window with even edges."""
        count = self.height * self.width
        luma, chroma = row[:count].reshape(self.height, self.width), row[count:]
        chroma = chroma.reshape(2, self.height // 2, self.width // 2)
        chroma = chroma[:, top // 2 : bottom // 2, left // 2 : right // 2]
        return [luma[top:bottom, left:right], *chroma]


def to_rgb(channels: Tensor) -> Tensor:
    """Convert the channels V, Y, U of images (..., H, W, 3) to RGB, both uint8."""
    own, following, last, added = _factors(channels.shape[-2], channels.device)
    flat = torch.empty(channels.numel() + 2, dtype=torch.int16, device=channels.device)  # with two that do not count
    lines = (-1, len(own))
    flat[1:-1].copy_(channels.reshape(-1))
    levels = torch.addcmul(added, flat[1:-1].view(lines), own)
    levels.addcmul_(flat[2:].view(lines), following).addcmul_(flat[:-2].view(lines), last)
    levels.bitwise_right_shift_(6).clamp_(0, 255)
    return levels.to(torch.uint8).view(channels.shape)


@cache
def _factors(width: int, device: torch.device) -> tuple[Tensor, ...]:
    """The factors for a line of `width` pixels."""
    each = (_OWN, _NEXT, _LAST, _ADDED)
    # torch.tensor waits for the copy, so any stream can use the factors afterwards.
    return tuple(torch.tensor(factors * width, dtype=torch.int16, device=device) for factors in each)
