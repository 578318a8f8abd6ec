"""The augmentation of PyTorch's documentation, one image at a time in the workers of a DataLoader.

Settings are from "Transforms v2: Performance considerations" in torchvision's documentation: tensors, uint8 until the
last steps, `antialias=True`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.libraries import load

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def augmentation(size: int, *, pil: bool = False) -> Callable[[Any], Any]:
    """Return a random resized crop, flip and normalization for a uint8 tensor (3, H, W), or for a PIL image."""
    import torch

    v2 = load("torchvision.transforms.v2")
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
