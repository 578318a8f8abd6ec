"""Flip images: RandomFlip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decodeonce.loader.augment.augment import Draws, Resampling, fill_rows
from decodeonce.loader.buffers import recycled


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each image left to right with probability `p`. Works for any dtype.

    Args:
        p: Probability, 0 to 1. Default: 0.5.

    Raises:
        ValueError: If `p` is not a probability.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p is {self.p!r}, expected a probability, 0 to 1")

    def _flipped(self, draws: Draws) -> Tensor:
        """(B, 1) bool: which images are mirrored."""
        return draws.uniform(1) < self.p

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        mirror = mirror_on_cpu if images.device.type == "cpu" else mirror_on_device
        return mirror(images, self._flipped(draws)[:, 0])

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Mirror the `boxes` of mirrored images (see ``BoxStep``)."""
        left, top, right, bottom = boxes.unbind(2)
        mirrored = torch.stack([width - right, top, width - left, bottom], 2)
        return torch.where(self._flipped(draws)[:, :, None], mirrored, boxes)

    def move_maps(self, maps: Tensor, draws: Draws, resampling: Resampling, /) -> Tensor:
        """Move the `maps` like the images (see ``MapStep``)."""
        return self(maps, draws)


def mirror_on_device(images: Tensor, flipped: Tensor) -> Tensor:
    """Mirror the images whose entry in `flipped` (B,) is True."""
    return torch.where(flipped[:, None, None, None], images.flip(2), images)


def mirror_on_cpu(images: Tensor, flipped: Tensor) -> Tensor:
    """The same on a CPU: 0.1 ms for a uint8 image of 224x224; torch.where takes 0.24 ms."""
    images = images.contiguous()
    result = recycled(images.shape, images.dtype)
    # View the bytes of a pixel as a single element, so that any dtype works.
    kind = f"V{images.shape[3] * images.element_size()}"
    pixels, written = (tensor.view(torch.uint8).numpy().view(kind) for tensor in (images, result))
    steps = [-1 if mirrored else 1 for mirrored in flipped.tolist()]

    def mirror(row: int) -> None:
        written[row] = pixels[row, :, :: steps[row]]

    return fill_rows(result, mirror)
