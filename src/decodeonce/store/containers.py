"""The file formats of shards. To add one, write a module with the members of `Container` and extend `CONTAINERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from decodeonce.store.hdf5 import Hdf5Container
from decodeonce.store.npy import NpyContainer


class Container(Protocol):
    """A shard's file format: a header, then the rows. In every format the rows are contiguous from `data_offset`.

    Attributes:
        suffix: End of a shard's file name.
        magic: First bytes of every shard.
    """

    suffix: str
    magic: bytes

    def head(self, shape: tuple[int, int, int, int], *, size: int, scratch: Path) -> bytes:
        """Return the header of a shard with `shape` (rows, H, W, C): the `size` bytes before its first row."""


CONTAINERS: dict[str, Container] = {"npy": NpyContainer(), "hdf5": Hdf5Container()}
