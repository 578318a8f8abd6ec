"""A store as a map-style dataset for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from decodeonce.loader.arguments import StoreLike, as_store


class StoreDataset(Dataset[tuple[Any, ...]]):
    """A map-style dataset for torch's DataLoader: ``dataset[row]`` is ``(image, label, *columns)``.

    A DataLoader reads a whole batch at once (``__getitems__``). A pickled dataset contains no rows, because worker
    processes open the store themselves.

    Args:
        store: Path to a store, or an open ``Store``.
        transform: Called with each image, a new uint8 tensor (H, W, C). The dataset returns its result as the image.
            Default: return the tensor.
        columns: Names of columns and paired masks whose entries follow the label, each a tensor. Default: none.

    Raises:
        StoreError: If the store is damaged, has no such column, or is a staged part without a requested row.
        IndexError: If a requested row does not exist.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> dataset = StoreDataset("train.store", transform=lambda image: image.permute(2, 0, 1))
        >>> images, labels = next(iter(DataLoader(dataset, batch_size=16, shuffle=True)))
        >>> images.shape
        torch.Size([16, 3, 256, 256])
    """

    def __init__(
        self, store: StoreLike, *, transform: Callable[[Tensor], Any] | None = None, columns: Sequence[str] = ()
    ) -> None:
        self.store = as_store(store)
        self.transform = transform
        self.columns = tuple(columns)
        for name in self.columns:
            if name not in self.store.paired:
                self.store.column(name)  # raises StoreError here instead of in a worker process

    @cached_property
    def classes(self) -> list[str]:
        """Class names in label order, as in torchvision's ImageFolder; ``store.classes`` also has descriptions."""
        return [cls.name for cls in self.store.manifest.classes]

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class name, as in torchvision's ImageFolder."""
        return {name: label for label, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[int]:
        """The label of each row, as in torchvision's ImageFolder.

        The list needs more memory than `labels` of the store.
        """
        labels: list[int] = self.store.labels.tolist()
        return labels

    def __repr__(self) -> str:
        return f"<StoreDataset of {self.store!r}>"

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return ``(image, label, *columns)`` of each row in `rows`, read at once."""
        images = torch.from_numpy(self.store.take(rows))
        labels = self.store.labels[rows].tolist()
        transformed = images if self.transform is None else map(self.transform, images)
        arrays: dict[str, Any] = {**self.store.columns, **self.store.paired} if self.columns else {}
        columns = [torch.from_numpy(arrays[name][rows]) for name in self.columns]
        return list(zip(transformed, labels, *columns, strict=True))
