"""A store for those who keep torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from decodeonce.loader.settings import StoreLike
from decodeonce.store import Store, open_store


class StoreDataset(Dataset[tuple[Any, int]]):
    """A map-style dataset of a store's rows: dataset[row] is (image, label).

    store: a path or an open Store. The image is a new (H, W, C) uint8 tensor, or what transform makes of it. A
    DataLoader fetches a whole batch at a time (`__getitems__`), in worker processes too: a pickle holds no rows.

    Raises StoreError for a damaged store; IndexError for a row that is not there.
    """

    def __init__(self, store: StoreLike, *, transform: Callable[[Tensor], Any] | None = None) -> None:
        self.store = store if isinstance(store, Store) else open_store(store)
        self.transform = transform

    @cached_property
    def classes(self) -> list[str]:
        """The class names in label order, as in torchvision's ImageFolder; `store.classes` also has descriptions."""
        return [cls.name for cls in self.store.manifest.classes]

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class name, as in torchvision's ImageFolder."""
        return {name: label for label, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[int]:
        """The label of every row, as in torchvision's ImageFolder; 40 MB for 1.28 million rows."""
        labels: list[int] = self.store.labels.tolist()
        return labels

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Any, int]]:
        """The samples of these rows, read in one go."""
        images = torch.from_numpy(self.store.take(rows))
        labels = self.store.labels[rows].tolist()
        pictures = images if self.transform is None else map(self.transform, images)
        return list(zip(pictures, labels, strict=True))
