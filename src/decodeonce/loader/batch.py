"""The batch that a Loader yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """The images, labels and further columns of up to `batch_size` rows, on the Loader's device.

    A batch unpacks to images and labels, so that ``for images, labels in loader`` works.

    Attributes:
        images: uint8 (B, H, W, C), contiguous. ``images.permute(0, 3, 1, 2)`` is already channels_last; no copy. After
            ``Augment``: (B, C, H, W), channels_last, with the dtype of its last step.
        labels: int64 (B,). After ``MixUp`` or ``CutMix``: float32 (B, classes).
        rows: int64 (B,), row numbers in the store. The first `valid` are in ascending order, and so is the padding:
            this is faster to read, and the order within a batch has no meaning.
        valid: Number of rows that count. The rows after them are padding.
        epoch: Number of the epoch. A transform can derive its random numbers from it.
        columns: The store's other numeric columns by name, each (B, ...).

    Example:
        >>> for batch in loader:
        ...     loss = cross_entropy(model(batch.images), batch.labels)
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
        """Return a batch with every tensor on `device`. Lightning and accelerate call this.

        Args:
            device: Target device.
            non_blocking: As in ``torch.Tensor.to``. Default: False.
        """
        moved = (tensor.to(device, non_blocking=non_blocking) for tensor in self.tensors())
        images, labels, rows, *columns = moved
        return Batch(images, labels, rows, self.valid, self.epoch, dict(zip(self.columns, columns, strict=True)))

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch: images, labels, rows and the columns."""
        return [self.images, self.labels, self.rows, *self.columns.values()]


Transform = Callable[[Batch], Batch]
