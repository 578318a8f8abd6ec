"""Resize windows of images, bilinear with antialiasing."""

from __future__ import annotations

import torch
from torch import Tensor


def resize_windows(images: Tensor, windows: Tensor, out_height: int, out_width: int) -> Tensor:
    """float32 (B, out_height, out_width, C), not rounded: each window of `images` (B, H, W, C), resized.

    windows: (B, 4) whole numbers: top, left, height and width.
    """
    batch, height, width, channels = images.shape
    top, left, box_height, box_width = windows.to(torch.float32).unbind(1)
    rows = _bilinear(top, box_height, out_height, height)
    columns = _bilinear(left, box_width, out_width, width).transpose(1, 2)
    # Lines are put channel by channel when they become floats anyway, so that no float is moved between the two
    # products. On two cores that takes 0.98 ms a picture of 256x256, 0.95 of it in the products; 1.00 to 1.07 with
    # lines rearranged in between, columns first or all transposed; 1.64 by gathering five taps.
    lines = images.transpose(2, 3).to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    resized = torch.bmm(rows, lines.view(batch, height, channels * width))
    resized = torch.bmm(resized.view(batch, out_height * channels, width), columns)
    return resized.view(batch, out_height, channels, out_width).transpose(2, 3)


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
