"""Flip images: RandomFlip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decodeonce.loader.augment.augment import Change, Draws, Plan, Resampling
from decodeonce.loader.augment.fused import Chain
from decodeonce.loader.augment.rows import PendingRows


@dataclass(frozen=True)
class RandomFlip(Change):
    """Mirror each image left to right with probability `p`. Works for any dtype.

    Args:
        p: Probability, 0 to 1. Default: 0.5.

    Raises:
        ValueError: If `p` is not a probability.

    Example:
        >>> loader = Loader("train.store", batch_size=16, transform=Augment(RandomFlip(p=0.5)))
        >>> next(iter(loader)).images.shape
        torch.Size([16, 3, 256, 256])
    """

    moves_pixels = True
    p: float = 0.5

    def _plan(self, rows: PendingRows, draws: Draws) -> Plan:
        # torch mirrors uint8 fast only if it is (B, C, H, W) in channels_last: 0.016 ms for an image of 224x224.
        return lambda images: images.permute(0, 3, 1, 2).flip(3).permute(0, 2, 3, 1), draws.uniform(1)[:, 0], ()

    def on_kernel(self, chain: Chain, draws: Draws, /) -> Chain:
        """Mirror the chosen images."""
        return chain.mirror(draws.uniform(1)[:, 0] < self.p)

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Mirror the `boxes` of mirrored images."""
        left, top, right, bottom = boxes.unbind(2)
        mirrored = torch.stack([width - right, top, width - left, bottom], 2)
        return torch.where((draws.uniform(1) < self.p)[:, :, None], mirrored, boxes)

    def move_maps(self, maps: Tensor, draws: Draws, resampling: Resampling, /) -> Tensor:
        """Move the `maps` like the images."""
        return self(maps, draws)
