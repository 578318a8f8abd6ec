"""Boxes as they are moved with their images: (B, K, 4) float32, left, top, right, bottom in pixels; absent ones are 0.

Each coordinate is rounded once, to float32: by a single float32 operation, or in float64 first. So a CPU and a device
give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def map_boxes(boxes: Tensor, x: Callable[[Tensor], Tensor], y: Callable[[Tensor], Tensor]) -> Tensor:
    """Boxes whose left and right went through `x`, top and bottom through `y`, each (B, K)."""
    left, top, right, bottom = boxes.unbind(2)
    return torch.stack([x(left), y(top), x(right), y(bottom)], 2)


def clip_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes clipped to an image of this size; those with nothing left in it become zeros."""
    clipped = map_boxes(boxes, lambda x: x.clamp(0, width), lambda y: y.clamp(0, height))
    return clipped.masked_fill(~present_boxes(clipped)[:, :, None], 0)


def present_boxes(boxes: Tensor) -> Tensor:
    """(B, K) bool: which boxes are there, that is, have an area."""
    left, top, right, bottom = boxes.unbind(2)
    return (left < right) & (top < bottom)
