"""The shard files of a store, opened when first needed, and where rows lie in them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from decodeonce.errors import DecodeonceError, StoreError
from decodeonce.loader.steps import Rows
from decodeonce.store import Store, disk
from decodeonce.store.checks import check_in_place, check_shard, unreadable
from decodeonce.store.layout import verify_command


class Span(NamedTuple):
    """Neighbours on disk: items [first, last) of the rows asked for lie at `offset` of a shard's file."""

    first: int
    last: int
    shard: int
    offset: int


class ShardFiles:
    """File descriptors of shards. `open` belongs to one thread, `spans` and `fd` to any."""

    def __init__(self, store: Store) -> None:
        shards = store.manifest.shards
        self.paths = [store.paths.root / shard.file for shard in shards]
        self.row_bytes = store.manifest.row_bytes
        self._manifest = store.manifest
        self._origins = np.array([shard.offset(0) for shard in shards], np.int64)
        self._fds: dict[int, int] = {}
        self._finalizer = weakref.finalize(self, _close_all, self._fds)

    def open(self, rows: Rows) -> list[int]:
        """Open the shards that `rows` lie in, and return them; StoreError where one is not as the manifest says."""
        shards: list[int] = np.unique(self._manifest.shard_indexes(rows)).tolist()
        for shard in shards:
            if shard not in self._fds:
                self._fds[shard] = self._open(shard)
        return shards

    def check(self, rows: Rows) -> None:
        """Raise StoreError where a file that `rows` lie in has become shorter than the manifest says."""
        for shard in self.open(rows):
            path, expected = self.paths[shard], self._manifest.shards[shard].bytes
            try:
                found = os.fstat(self._fds[shard]).st_size
            except OSError as error:
                raise unreadable(path, error) from error
            if found < expected:
                raise ends_early(path, found, expected)

    def fd(self, shard: int) -> int:
        """The descriptor of a shard that is open."""
        return self._fds[shard]

    def spans(self, rows: Rows) -> Iterator[Span]:
        """Where `rows` lie, as few spans as their sequence allows."""
        shards = self._manifest.shard_indexes(rows)
        offsets = self._origins[shards] + rows * self.row_bytes
        breaks = np.flatnonzero((rows[1:] != rows[:-1] + 1) | (shards[1:] != shards[:-1])) + 1
        firsts, lasts = np.append(0, breaks), np.append(breaks, len(rows))
        # Lists all at once: 256 rows took 230 us with NumPy's numbers one by one.
        return map(Span, firsts.tolist(), lasts.tolist(), shards[firsts].tolist(), offsets[firsts].tolist())

    def close(self) -> None:
        """Let go of all files; a second call does nothing."""
        self._finalizer()

    def _open(self, shard: int) -> int:
        path, manifest = self.paths[shard], self._manifest
        try:
            check_shard(path, manifest.shards[shard], manifest.container)  # a file may change after a store is opened
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            check_in_place(path.parent, manifest, path)
        except DecodeonceError:  # Stopped, too, where a passing error keeps the manifest from being read
            disk.close(fd)
            raise
        if hasattr(os, "posix_fadvise"):
            # What the kernel would read besides, where it takes rows for a stream, costs more than it gives: 1.45 GB/s
            # of random rows from a cold disk with this, 0.94 without. What comes next is asked for: see ahead.py.
            with suppress(OSError):  # whoever reads will say so
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd


def ends_early(path: Path, found: int, expected: int) -> StoreError:
    """What is to be said of a shard that was cut short."""
    told = f"ends at byte {found}, expected {expected} at least; run {verify_command(path.parent)}"
    return StoreError(f"{path}: {told}")


def _close_all(fds: dict[int, int]) -> None:
    while fds:
        disk.close(fds.popitem()[1])
