"""The containers a shard may be in; a new one is a module with these members and a line in `CONTAINERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from decodeonce.store.hdf5 import Hdf5Container
from decodeonce.store.npy import NpyContainer


class Container(Protocol):
    """How a shard's rows are wrapped; the rows themselves lie contiguous from `data_offset` in every container.

    Attributes:
        suffix: The end of a shard's name.
        magic: The bytes that every shard begins with.
    """

    suffix: str
    magic: bytes

    def head(self, shape: tuple[int, int, int, int], *, size: int, scratch: Path) -> bytes:
        """The `size` bytes before the first row of a shard of `shape` (rows, H, W, C)."""


CONTAINERS: dict[str, Container] = {"npy": NpyContainer(), "hdf5": Hdf5Container()}
