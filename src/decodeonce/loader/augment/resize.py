"""Resize windows of images, bilinear with antialiasing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from decodeonce.loader.augment.threads import for_each_row
from decodeonce.loader.buffers import recycled


def resize_windows(images: Tensor, windows: Tensor, height: int, width: int) -> Tensor:
    """Resize a window of each image. uint8 images stay uint8 (rounded); other dtypes become float32.

    Args:
        images: (B, H, W, C).
        windows: (B, 4) whole numbers: top, left, height and width.
        height: Height of the result in pixels.
        width: Width of the result in pixels.
    """
    if images.dtype != torch.uint8:
        return _multiply(images, windows, height, width)
    if images.device.type == "cpu":
        return resize_on_cpu(images, windows, height, width)
    return resize_on_device(images, windows, height, width)


def resize_on_device(images: Tensor, windows: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 images on any device; differs from `resize_on_cpu` by at most one level."""
    levels = _multiply(images, windows, height, width).add_(0.5)  # rounds halves up, as on a CPU
    # If torch multiplies float32 at reduced precision, white can become 256, which is black as uint8.
    return levels.clamp_(0, 255).to(torch.uint8, memory_format=torch.contiguous_format)


def resize_on_cpu(images: Tensor, windows: Tensor, out_height: int, out_width: int) -> Tensor:
    """Resize uint8 images on a CPU with torch's kernel for uint8.

    Resizing a window from 256x256 to 224x224 takes 0.1 ms; `_multiply` takes 3.1 ms.
    """
    result = recycled((len(images), out_height, out_width, images.shape[3]), images.dtype)
    pixels, written = images.numpy(), result.permute(0, 3, 1, 2).numpy()
    places = windows.to(torch.int64).tolist()

    def resize(row: int) -> None:
        top, left, height, width = places[row]
        window = np.ascontiguousarray(pixels[row, top : top + height, left : left + width])
        # [None] before permute() gives the strides that torch accepts as channels_last; the result has them too.
        image = torch.from_numpy(window)[None].permute(0, 3, 1, 2)
        written[row] = interpolate(image, (out_height, out_width), mode="bilinear", antialias=True).numpy()[0]

    for_each_row(resize, len(images))
    return result


def _multiply(images: Tensor, windows: Tensor, out_height: int, out_width: int) -> Tensor:
    """Resize to float32, without rounding, by multiplying with two matrices of weights."""
    batch, height, width, channels = images.shape
    top, left, box_height, box_width = windows.to(torch.float32).unbind(1)
    rows = _bilinear(top, box_height, out_height, height)
    columns = _bilinear(left, box_width, out_width, width).transpose(1, 2)
    # Separate the channels here, where levels are copied to floats anyway. Then no float moves between the products.
    lines = images.transpose(2, 3).to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    resized = torch.bmm(rows, lines.view(batch, height, channels * width))
    resized = torch.bmm(resized.view(batch, out_height * channels, width), columns)
    return resized.view(batch, out_height, channels, out_width).transpose(2, 3)


def _bilinear(first: Tensor, length: Tensor, out: int, size: int) -> Tensor:
    """Weights (B, out, size) that resize `length` (B,) pixels, starting at `first` (B,), to `out` pixels.

    `size` is the number of pixels of the whole image. The weights are those of Pillow: a triangle that widens as the
    image shrinks, cut off at the edges of the window (src/libImaging/Resample.c, precompute_coeffs).
    """
    scale = (length / out)[:, None]
    middles = torch.arange(0.5, max(out, size), dtype=torch.float32, device=first.device)
    centres = first[:, None] + middles[:out] * scale
    distances = (middles[:size] - centres[:, :, None]).div_(scale.clamp(min=1)[:, :, None]).abs_()
    inside = (middles[:size] > first[:, None]) & (middles[:size] < (first + length)[:, None])
    weights = distances.neg_().add_(1).clamp_(min=0).mul_(inside[:, None])
    return weights.div_(weights.sum(2, keepdim=True))
