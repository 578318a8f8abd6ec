"""The augmentation of PyTorch's documentation, one image at a time in the workers of a DataLoader.

Settings are from "Transforms v2: Performance considerations" in torchvision's documentation: tensors, uint8 until the
last steps, `antialias=True`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def augmentation(size: int, *, pil: bool = False) -> Callable[[Any], Any]:
    """Return a random resized crop, flip and normalization for a uint8 tensor (3, H, W), or for a PIL image."""
    import torch

    if torch.version.cuda is None and "+" not in version("torchvision"):
        # The library in the usual wheel needs CUDA. Without it, torchvision can be imported only if its operators nms
        # and qnms are defined.
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor() if pil else v2.Identity(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def augmented_rows(size: int) -> Callable[[Any], Any]:
    """Return augmentation() for a uint8 array or tensor (H, W, 3)."""
    import torch

    transform = augmentation(size)
    return lambda row: transform(torch.as_tensor(row).permute(2, 0, 1))
