"""The containers a shard may be in; a new one is a module with these members and a line in `CONTAINERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from decodeonce.store.hdf5 import Hdf5Container
from decodeonce.store.npy import NpyContainer


class Container(Protocol):
    """How a shard's rows are wrapped; the rows themselves lie contiguous from `data_offset` in every container."""

    name: str
    suffix: str

    def head(self, shape: tuple[int, int, int, int], *, size: int, scratch: Path) -> bytes:
        """The `size` bytes before the first row of a shard of `shape` (rows, H, W, C)."""

    def check_magic(self, path: Path, head: bytes) -> None:
        """Raise StoreError unless `head` begins as this container's files do."""


CONTAINERS: dict[str, Container] = {c.name: c for c in (NpyContainer(), Hdf5Container())}
