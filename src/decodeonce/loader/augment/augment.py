"""A list of steps as the transform of a Loader."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from decodeonce.loader.augment.draws import Draws
from decodeonce.loader.batch import Batch
from decodeonce.loader.order import derive_key
from decodeonce.loader.settings import check_whole


class Step(Protocol):
    """One augmentation; any callable like it is one."""

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        """The new pictures (B, H, W, C) of these (B, H, W, C), which are not written to."""


class Augment:
    """A transform for a Loader: the steps in turn, on images (B, H, W, C), each with random numbers of its own.

    The batch it returns has images (B, C, H, W) in the channels_last memory format, as convolutional networks take
    them, of the last step's dtype. seed: any whole number. What happens to a row follows from seed, epoch, row and the
    steps up to that point; of batch, rank and world size at most the last bits of a resized float32 may depend.
    """

    def __init__(self, *steps: Step, seed: int = 0) -> None:
        for step in steps:
            if isinstance(step, type) or not callable(step):
                raise ValueError(f"a step is {step!r}, expected one like RandomFlip()")
        check_whole(None, seed=seed)
        self._steps = steps
        self._seed = seed

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its pictures augmented."""
        images = batch.images
        for number, step in enumerate(self._steps):
            draws = Draws(derive_key(self._seed, batch.epoch, number), batch.rows, batch.epoch)
            images = step(images, draws)
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, images=images)
