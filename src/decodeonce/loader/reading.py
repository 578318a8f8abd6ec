"""From shards into slots: the two readers and the choice between them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.host import available_memory, network_file_system
from decodeonce.loader.ring import Pixels
from decodeonce.store import Store
from decodeonce.store.files import read_at
from decodeonce.store.reader import runs

READERS = ("auto", "pread", "mmap")

Rows = NDArray[np.int64]
Part = Callable[[], object]


class Reader(Protocol):
    """Copies rows of a store into slots."""

    name: str

    def parts(self, rows: Rows, out: Pixels, threads: int) -> list[Part]:
        """One call a thread, which together fill out[i] with row rows[i] and touch nothing else."""

    def close(self) -> None:
        """Let go of all files; a second call does nothing."""


class MmapReader:
    """Copies out of mappings: Images.take straight into the slot."""

    name = "mmap"

    # Measured on two cores of an AMD EPYC 9005, 50 MB batches, page cache warm, GB/s on one and two threads: np.take
    # 18.3 and 20.0, np.copyto of rows in a row 17.3 and 17.9, torch.index_select 15.4 and 17.5, preadv 11.3 and 13.9.
    # A first pass over a mapping ran at 11.5 on one thread; MADV_POPULATE_READ beforehand cost as much as it saved.

    def __init__(self, store: Store) -> None:
        self._images = store.images

    def parts(self, rows: Rows, out: Pixels, threads: int) -> list[Part]:
        return [partial(self._images.take, rows[a:b], out[a:b]) for a, b in _shares(len(rows), threads)]

    def close(self) -> None:
        pass


class PreadReader:
    """Reads each run of consecutive rows with one preadv, straight into the slot."""

    name = "pread"

    def __init__(self, store: Store) -> None:
        shards = store.manifest.shards
        self._paths = [store.paths.root / shard.file for shard in shards]
        self._offsets = [shard.data_offset - shard.first_row * store.manifest.row_bytes for shard in shards]
        self._first_rows = np.array([shard.first_row for shard in shards], np.int64)
        self._row_bytes = store.manifest.row_bytes
        self._fds: dict[int, int] = {}
        self._finalizer = weakref.finalize(self, _close_all, self._fds)

    def parts(self, rows: Rows, out: Pixels, threads: int) -> list[Part]:
        shards = np.searchsorted(self._first_rows, rows, side="right") - 1
        for shard in np.unique(shards).tolist():
            self._open(shard)  # here, on one thread
        return [partial(self._read, rows[a:b], shards[a:b], out[a:b]) for a, b in _shares(len(rows), threads)]

    def close(self) -> None:
        self._finalizer()

    def _open(self, shard: int) -> None:
        try:
            if shard not in self._fds:
                self._fds[shard] = os.open(self._paths[shard], os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{self._paths[shard]}: cannot be opened: {error.strerror}") from error

    def _read(self, rows: Rows, shards: Rows, out: Pixels) -> None:
        target, size = out.data.cast("B"), self._row_bytes
        for a, b in runs((rows[1:] != rows[:-1] + 1) | (shards[1:] != shards[:-1])):
            self._read_run(int(shards[a]), int(rows[a]), target[a * size : b * size])

    def _read_run(self, shard: int, row: int, target: memoryview) -> None:
        offset = self._offsets[shard] + row * self._row_bytes
        try:
            got = read_at(self._fds[shard], target, offset)
        except OSError as error:
            raise StoreError(f"{self._paths[shard]}: row {row} cannot be read: {error}") from error
        if got < target.nbytes:
            short = f"ends at byte {offset + got}, expected {offset + target.nbytes} at least"
            raise StoreError(f"{self._paths[shard]}: {short}; run `prep verify`")


def make_reader(store: Store, name: str) -> tuple[Reader, str]:
    """The reader called `name`, one of `READERS`, and why it is the one."""
    why = "asked for"
    if name == "auto":
        name, why = choose_reader(store)
    return (PreadReader(store) if name == "pread" else MmapReader(store)), why


def choose_reader(store: Store) -> tuple[str, str]:
    """The name of the reader that suits the store's place and size, and the reason."""
    network = network_file_system(store.paths.root)
    if network is not None:
        return "pread", f"on {network} a mapping would fault page by page over the network"
    nbytes, memory = len(store) * store.manifest.row_bytes, available_memory()
    if memory is not None and nbytes > memory / 2:
        return "pread", f"{nbytes / 1e9:.1f} GB of rows, more than half of {memory / 1e9:.1f} GB of available memory"
    return "mmap", "a local file system, and the rows fit into half of the available memory"


def _shares(count: int, threads: int) -> list[tuple[int, int]]:
    cuts = [count * share // threads for share in range(threads + 1)]
    return [(a, b) for a, b in pairwise(cuts) if a < b]


def _close_all(fds: dict[int, int]) -> None:
    while fds:
        os.close(fds.popitem()[1])
