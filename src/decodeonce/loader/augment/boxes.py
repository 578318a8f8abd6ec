"""Move boxes with their images: float32 (B, K, 4), left, top, right, bottom in pixels; absent boxes are zeros.

Each coordinate is rounded once, to float32: after a single float32 operation, or after several in float64. So a CPU and
a device give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def map_boxes(boxes: Tensor, x: Callable[[Tensor], Tensor], y: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `x` to the left and right of boxes, and `y` to the top and bottom, each (B, K)."""
    left, top, right, bottom = boxes.unbind(2)
    return torch.stack([x(left), y(top), x(right), y(bottom)], 2)


def clip_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """Clip boxes to an image of this size. Boxes outside of the image become zeros."""
    clipped = map_boxes(boxes, lambda x: x.clamp(0, width), lambda y: y.clamp(0, height))
    return clipped.masked_fill(~present_boxes(clipped)[:, :, None], 0)


def present_boxes(boxes: Tensor) -> Tensor:
    """(B, K) bool: which boxes are present, that is, have an area."""
    left, top, right, bottom = boxes.unbind(2)
    return (left < right) & (top < bottom)
