"""Geometry of resizing, cropping, padding and boxes, and the limit of sizes, from sizes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from decodeonce.prep.entry import Box, Undecodable

PixelBox = tuple[int, int, int, int]
MAX_PIXELS = 178_956_970  # Pillow's limit for a decompression bomb
_ALMOST = 1e-6  # 0.29 * 100 is 28.999999999999996


@dataclass(frozen=True)
class Placement:
    """Resize to (width, height), then take the window of the row's size whose corner is at (left, top).

    With fit "pad", left and top are negative or 0: the resized image is inside the row.
    """

    width: int
    height: int
    left: int
    top: int


def check_size(width: int, height: int) -> None:
    """Raise Undecodable if an image of this size has no pixels, or more than MAX_PIXELS."""
    if not 0 < width * height <= MAX_PIXELS:
        if width < 1 or height < 1:
            raise Undecodable(f"{width}x{height} pixels")
        raise Undecodable(f"decompression bomb: {width}x{height} pixels, more than {MAX_PIXELS}")


@lru_cache(maxsize=4096)
def fit_to(fit: str, source: tuple[int, int], row: tuple[int, int]) -> Placement:
    """Return the Placement of a source (width, height) to a row (width, height).

    "crop" gives the integers of torchvision's Resize(size) and CenterCrop(size) on a PIL image: the long side is
    int(size * long / short), the corner is int(round(excess / 2.0)) with Python's round-half-to-even
    (torchvision.transforms.functional: _compute_resized_output_size and center_crop).
    """
    (w, h), (row_w, row_h) = source, row
    if fit == "stretch":
        return Placement(row_w, row_h, 0, 0)
    width_leads = row_w * h >= row_h * w if fit == "crop" else row_w * h <= row_h * w
    if width_leads:
        width, height = row_w, max(1, int(row_w * h / w))
    else:
        width, height = max(1, int(row_h * w / h)), row_h
    if fit == "crop":
        return Placement(width, height, round((width - row_w) / 2.0), round((height - row_h) / 2.0))
    return Placement(width, height, -((row_w - width) // 2), -((row_h - height) // 2))


def pixel_box(box: Box, width: int, height: int) -> PixelBox:
    """Return the pixels that a box touches, as (left, top, right, bottom); right and bottom are exclusive."""
    left = min(math.floor(box[0] * width + _ALMOST), width - 1)
    top = min(math.floor(box[1] * height + _ALMOST), height - 1)
    right = min(math.ceil(box[2] * width - _ALMOST), width)
    bottom = min(math.ceil(box[3] * height - _ALMOST), height)
    return (left, top, max(right, left + 1), max(bottom, top + 1))


def upright(size: tuple[int, int], turn: int) -> tuple[int, int]:
    """Return (width, height) after applying EXIF orientation `turn` (1 to 8), or before it."""
    return (size[1], size[0]) if turn >= 5 else size


def turned_box(box: Box, turn: int) -> Box:
    """Return a box after its image was rotated or flipped by EXIF orientation `turn` (1 to 8)."""
    left, top, right, bottom = box
    if turn >= 5:
        left, top, right, bottom = top, left, bottom, right
    if turn in (2, 3, 6, 7):
        left, right = 1 - right, 1 - left
    if turn in (3, 4, 7, 8):
        top, bottom = 1 - bottom, 1 - top
    return (left, top, right, bottom)
