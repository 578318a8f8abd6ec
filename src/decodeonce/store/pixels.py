"""How rows hold images as planes of brightness and color. `bc4.py` holds them in half the bytes, format.py has RGB."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
ALL = slice(None)


class Yuv420:
    """Planes Y, U and V, as I420 of OpenCV and FFmpeg: U and V have half the height and width of the image.

    The values are those of JFIF: BT.601, 0..255. docs/reference/format.md defines them.
    """

    def pack(self, image: Any) -> bytes:
        """Return the planes of an image of even height and width."""
        # Exact, because all numbers are multiples of 2**-16 below 256. convert("L") of pillow-simd rounds a pixel in a
        # thousand differently, and convert("YCbCr") truncates.
        image = image.convert("RGB")
        small = image.reduce(2)  # means of four pixels
        planes = image.convert("L", _Y), small.convert("L", _U), small.convert("L", _V)
        return self.pack_planes(b"".join(plane.tobytes() for plane in planes), image.height, image.width)

    def pack_planes(self, planes: bytes | Pixels, height: int, width: int) -> bytes:
        """Return a row with these planes Y, U and V of an image."""
        return bytes(planes)

    def unpack(self, rows: Pixels, shape: tuple[int, ...], lines: slice = ALL, out: Pixels | None = None) -> Pixels:
        """Return new images, in which four pixels share U and V."""
        numbers = np.arange(shape[0])[lines]
        if out is None:
            out = np.empty((*rows.shape[:-1], len(numbers), *shape[1:]), np.uint8)
        # One image at a time stays in the cache of a processor.
        count = math.prod(rows.shape[:-1])
        images = out.reshape(count, *out.shape[-3:])
        for row, image in zip(rows.reshape(count, rows.shape[-1]), images, strict=True):
            _unpack(self.planes(row, shape), shape, numbers, image)
        return out

    def planes(self, row: Pixels, shape: tuple[int, ...]) -> Pixels:
        """Return the bytes of the planes of an image of `shape` (H, W, 3)."""
        return row


# Factors of R, G and B, and a number to add before 0.5 is added and the fraction is dropped.
_Y = (19595 / 2**16, 38470 / 2**16, 7471 / 2**16, 0)
_U = (-5529 / 2**15, -10855 / 2**15, 16384 / 2**15, 128 - 2**-15)
_V = (16384 / 2**15, -13720 / 2**15, -2664 / 2**15, 128 - 2**-15)


def _unpack(row: Pixels, shape: tuple[int, ...], numbers: NDArray[np.intp], out: Pixels) -> None:
    height, width, _ = shape
    luma = row[: height * width].reshape(height, width)[numbers].astype(np.int16)
    u, v = row[height * width :].reshape(2, height // 2, width // 2).astype(np.int16) - np.int16(128)
    for channel, more in enumerate((v * 90 + 32, u * -22 + v * -46 + 32, u * 113 + 32)):
        # Repeat each number: as the halves of a number of twice the size.
        repeated = ((more >> 6).view(np.uint16).astype(np.uint32) * 0x10001).view(np.int16)
        level = luma + repeated[numbers // 2]
        out[..., channel] = np.clip(level, 0, 255, out=level)
