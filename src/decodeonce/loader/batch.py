"""What a step of training gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch; iterating it gives images and labels, so that `for images, labels in loader` works.

    images: (B, H, W, C) uint8, contiguous; `images.permute(0, 3, 1, 2)` is channels_last without a copy.
    labels: (B,) int64. rows: (B,) int64, places in the store, ascending among the first `valid` (their order within a
    batch means nothing: reading goes faster so) and among the rest. valid: the first so many count, the rest is
    padding. epoch: the number of the epoch, so that a transform's randomness can follow from it. columns: the store's
    further per-row arrays of numbers by name, each (B, ...). All tensors lie on the loader's device.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    valid: int
    epoch: int
    columns: dict[str, Tensor] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Tensor]:
        yield self.images
        yield self.labels

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """The batch with every tensor on `device`, where Lightning and accelerate would have it anyway."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        columns = {name: move(column) for name, column in self.columns.items()}
        return replace(self, images=move(self.images), labels=move(self.labels), rows=move(self.rows), columns=columns)

    def tensors(self) -> list[Tensor]:
        """Every tensor of the batch."""
        return [self.images, self.labels, self.rows, *self.columns.values()]
