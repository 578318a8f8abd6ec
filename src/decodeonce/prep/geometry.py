"""Sizes only: what a picture of some size is resized to, and what is cut from or put around it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Fit:
    """Resize to (width, height), then take the window of the row's size whose corner is at (left, top).

    With fit "pad" the corner is negative or 0: the resized picture lies inside the row.
    """

    width: int
    height: int
    left: int
    top: int


@lru_cache(maxsize=4096)
def fit_to(fit: str, source: tuple[int, int], row: tuple[int, int]) -> Fit:
    """The Fit of a source (width, height) to a row (width, height).

    "crop" has the integers of torchvision's Resize(size) and CenterCrop(size) on a PIL image: the long side is
    int(size * long / short), the corner int(round(excess / 2.0)) with Python's round-half-to-even
    (torchvision.transforms.functional: _compute_resized_output_size and center_crop).
    """
    (w, h), (row_w, row_h) = source, row
    if fit == "stretch":
        return Fit(row_w, row_h, 0, 0)
    width_leads = row_w * h >= row_h * w if fit == "crop" else row_w * h <= row_h * w
    if width_leads:
        width, height = row_w, max(1, int(row_w * h / w))
    else:
        width, height = max(1, int(row_h * w / h)), row_h
    if fit == "crop":
        return Fit(width, height, round((width - row_w) / 2.0), round((height - row_h) / 2.0))
    return Fit(width, height, -((row_w - width) // 2), -((row_h - height) // 2))
