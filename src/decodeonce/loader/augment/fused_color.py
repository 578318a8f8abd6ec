"""ColorJitter, RandomGrayscale, Solarize and GaussianBlur of a batch on an accelerator, in one or two kernels each.

torch launches 217 kernels for ColorJitter and 66 for GaussianBlur. Its code in `color.py` gives the same results,
within a level.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decodeonce.loader.augment.augment import Draws
from decodeonce.loader.augment.fused import constant, on_device

BLOCK = 1024  # pixels that one program of a kernel computes, or values of pixels in a blur
Range = tuple[float, float]


def jitter(images: Tensor, draws: Draws, p: float, ranges: tuple[Range, ...], used: list[int]) -> Tensor:
    """Apply ColorJitter with the ranges of its four changes, of which only those in `used` change anything."""
    from decodeonce.loader.augment.color_kernel import jitter_pixels  # not every torch has Triton

    images, out = images.contiguous(), _like(images)
    pixels = images.shape[1] * images.shape[2]
    grid = len(images), -(-pixels // BLOCK)
    sums, contrast = torch.empty(grid, dtype=torch.float32, device=images.device), 1 in used
    given = images, draws.uniform(9), _bounds(ranges, images.device), sums, out, float(p), pixels
    sizes = {"BLOCKS": _power_of_two(grid[1]), "BLOCK": BLOCK}
    with on_device(images.device):
        for only_sum in (True, False) if contrast else (False,):
            changes = {"SUM": only_sum, "CONTRAST": contrast and not only_sum, "HUE": 3 in used}
            # Without fusion, a product and a sum are rounded one by one, as in torch's draws.
            jitter_pixels[grid](*given, **changes, **sizes, enable_fp_fusion=False)
    return out


def recolor(images: Tensor, draws: Draws, p: float, threshold: float | None) -> Tensor:
    """Apply Solarize with this threshold, or RandomGrayscale without one."""
    from decodeonce.loader.augment.color_kernel import recolor_pixels  # not every torch has Triton

    images, out = images.contiguous(), _like(images)
    pixels = images.shape[1] * images.shape[2]
    given = images, draws.uniform(1), out, float(p), float(threshold or 0), pixels
    with on_device(images.device):
        grid = len(images), -(-pixels // BLOCK)
        recolor_pixels[grid](*given, GRAY=threshold is None, BLOCK=BLOCK, enable_fp_fusion=False)
    return out


def blur(images: Tensor, draws: Draws, p: float, sigmas: Range, kernel_size: int) -> Tensor:
    """Apply GaussianBlur: first to columns, without rounding, and then to lines."""
    from decodeonce.loader.augment.color_kernel import blur_pixels  # not every torch has Triton

    images, drawn = images.contiguous(), draws.uniform(2)
    _, height, width, channels = images.shape
    values = height * width * channels
    for size, step, dtype in ((height, width * channels, torch.float32), (width, channels, torch.uint8)):
        out = _like(images, dtype)
        with on_device(images.device):
            given = images, drawn, _bounds((sigmas,), images.device), out, float(p), values, size, step
            sizes = {"REACH": kernel_size // 2, "TAPS": _power_of_two(kernel_size), "BLOCK": BLOCK}
            grid = len(images), -(-values // BLOCK)
            blur_pixels[grid](*given, **sizes, ROUND=dtype == torch.uint8, enable_fp_fusion=True)
        images = out
    return images


def _like(images: Tensor, dtype: torch.dtype = torch.uint8) -> Tensor:
    """Memory for images of the same shape, without gaps."""
    return torch.empty(images.shape, dtype=dtype, device=images.device)


def _bounds(ranges: tuple[Range, ...], device: torch.device) -> Tensor:
    """The ranges as the kernels take them."""
    return constant(tuple(end for low, high in ranges for end in (low, high - low)), torch.float32, device)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
