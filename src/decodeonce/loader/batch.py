"""What a training step gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch; iterating over it gives images and labels, so that ``for images, labels in loader`` works.

    All tensors are on the loader's device.

    Attributes:
        images: uint8 (B, H, W, C), contiguous; ``images.permute(0, 3, 1, 2)`` is channels_last without a copy.
        labels: int64 (B,); float32 (B, classes) after MixUp or CutMix.
        rows: int64 (B,), row numbers in the store. They ascend within the first `valid` and within the rest: reading is
            faster in this order, and the order within a batch has no meaning.
        valid: How many rows count, from the first on; the rest is padding.
        epoch: Number of the epoch, so that a transform's randomness can follow from it.
        columns: The store's further per-row arrays of numbers by name, each (B, ...).
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
        """The batch with every tensor on `device`, as Lightning and accelerate need it."""
        moved = (tensor.to(device, non_blocking=non_blocking) for tensor in self.tensors())
        images, labels, rows, *columns = moved
        return Batch(images, labels, rows, self.valid, self.epoch, dict(zip(self.columns, columns, strict=True)))

    def tensors(self) -> list[Tensor]:
        """Every tensor of the batch."""
        return [self.images, self.labels, self.rows, *self.columns.values()]


Transform = Callable[[Batch], Batch]
