"""From shards into slots: the two readers and the choice between them."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from decodeonce.errors import SERVER_AWAY, StoreError
from decodeonce.host import available_memory, network_file_system
from decodeonce.loader.ring import Pixels
from decodeonce.loader.shards import ShardFiles, Span, ends_early
from decodeonce.loader.steps import Rows
from decodeonce.store import Store
from decodeonce.store.checks import bad_row, check_file, unreadable
from decodeonce.store.hashing import first_wrong_row
from decodeonce.store.regular_files import read_at

READERS = ("auto", "pread", "mmap")
MADV_POPULATE_READ = 22  # of linux/mman.h

Part = Callable[[], object]


class Reader(Protocol):
    """Copies rows of a store into slots."""

    name: str

    def parts(self, rows: Rows, out: Pixels, threads: int) -> list[Part]:
        """One call a thread, which together fill out[i] with row rows[i] and touch nothing else."""


class MmapReader:
    """Copies out of mappings: Images.take straight into the slot.

    Where a file is cut short, reading its mapping kills the process (SIGBUS), so sizes are looked at before each batch;
    what happens after the look is the system's to punish. PreadReader gets an error at any time. The same signal comes
    where a file server goes away. So on a network file system the kernel is asked to map the pages first, and rows that
    it cannot map are left to PreadReader.
    """

    name = "mmap"

    # Measured on two cores of an AMD EPYC 9005, 50 MB batches, page cache warm, GB/s on one and two threads: np.take
    # 18.3 and 20.0, np.copyto of rows in a row 17.3 and 17.9, torch.index_select 15.4 and 17.5, preadv 11.3 and 13.9.
    # A first pass over a mapping ran at 11.5 on one thread; MADV_POPULATE_READ beforehand cost as much as it saved.

    def __init__(self, store: Store, files: ShardFiles) -> None:
        self._images = store.images
        self._files = files
        self._remote = network_file_system(store.paths.root) is not None
        self._pread = PreadReader(files)

    def parts(self, rows: Rows, out: Pixels, threads: int) -> list[Part]:
        self._files.check(rows)
        copy = self._copy_remote if self._remote else self._images.take
        return [partial(copy, rows[a:b], out[a:b]) for a, b in _shares(len(rows), threads)]

    def _copy_remote(self, rows: Rows, out: Pixels) -> None:
        for span in self._files.spans(rows):
            first, some = int(rows[span.first]), slice(span.first, span.last)
            if _map_pages(self._images[first], (span.last - span.first) * self._files.row_bytes):
                self._images.take(rows[some], out[some])
            else:
                self._pread.read(rows[some], out[some])


class PreadReader:
    """Reads each run of consecutive rows with one preadv, straight into the slot."""

    name = "pread"

    def __init__(self, files: ShardFiles) -> None:
        self._files = files

    def parts(self, rows: Rows, out: Pixels, threads: int) -> list[Part]:
        self._files.open(rows)  # here, on one thread
        return [partial(self.read, rows[a:b], out[a:b]) for a, b in _shares(len(rows), threads)]

    def read(self, rows: Rows, out: Pixels) -> None:
        """Fill out[i] with row rows[i]; their shards are open."""
        target, size = out.data.cast("B"), self._files.row_bytes
        for span in self._files.spans(rows):
            self._read_span(span, int(rows[span.first]), target[span.first * size : span.last * size])

    def _read_span(self, span: Span, row: int, target: memoryview) -> None:
        path = self._files.paths[span.shard]
        try:
            got = read_at(self._files.fd(span.shard), target, span.offset)
        except OSError as error:
            if error.errno in (errno.ESTALE, *SERVER_AWAY):
                raise unreadable(path, error) from error
            raise StoreError(f"{path}: row {row} cannot be read: {error.strerror}") from error
        if got < target.nbytes:
            raise ends_early(path, span.offset + got, span.offset + target.nbytes)


class CheckedReader:
    """Another reader whose rows are checked against checksums.npy as soon as they were copied, by the same threads.

    Raises StoreError where checksums.npy, or a column, is not what was written: that is looked at here, once.
    """

    def __init__(self, reader: Reader, store: Store) -> None:
        manifest, root = store.manifest, store.paths.root
        for name in (store.paths.checksums.name, *(column.file for column in manifest.columns)):
            check_file(root / name, manifest.files[name])
        self.name = reader.name
        self._reader, self._store, self._checksums = reader, store, np.asarray(store.checksums)

    def parts(self, rows: Rows, out: Pixels, threads: int) -> list[Part]:
        """The reader's parts, each with its check."""
        parts = self._reader.parts(rows, out, threads)
        shares = _shares(len(rows), threads)
        return [partial(self._checked, part, rows[a:b], out[a:b]) for part, (a, b) in zip(parts, shares, strict=True)]

    def _checked(self, part: Part, rows: Rows, out: Pixels) -> None:
        part()
        size = self._store.manifest.row_bytes
        if (wrong := first_wrong_row(out.data.cast("B"), size, self._checksums[rows].tolist())) is not None:
            raise bad_row(self._store.paths.root, self._store.manifest, int(rows[wrong]))


def _map_pages(start: Pixels, nbytes: int) -> bool:
    """Have the kernel map the pages of `nbytes` from the start of an array; False where it cannot (before Linux 5.14).

    Reading them could otherwise end this process with SIGBUS.
    """
    first = start.ctypes.data & -mmap.PAGESIZE
    return bool(_madvise()(first, start.ctypes.data + nbytes - first, MADV_POPULATE_READ) == 0)


@cache
def _madvise() -> Any:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise


def make_reader(store: Store, files: ShardFiles, name: str) -> tuple[Reader, str]:
    """The reader called `name`, one of `READERS`, and why it is the one; `files` stay the caller's."""
    why = "asked for"
    if name == "auto":
        name, why = choose_reader(store)
    return (PreadReader(files) if name == "pread" else MmapReader(store, files)), why


def choose_reader(store: Store) -> tuple[str, str]:
    """The name of the reader that suits the store's place and size, and the reason."""
    network = network_file_system(store.paths.root)
    if network is not None:
        return "pread", f"on {network} a mapping would fault page by page over the network"
    nbytes, memory = len(store.rows) * store.manifest.row_bytes, available_memory()
    if memory is not None and nbytes > memory / 2:
        return "pread", f"{nbytes / 1e9:.1f} GB of rows, more than half of {memory / 1e9:.1f} GB of available memory"
    return "mmap", "a local file system, and the rows fit into half of the available memory"


def _shares(count: int, threads: int) -> list[tuple[int, int]]:
    cuts = [count * share // threads for share in range(threads + 1)]
    return [(a, b) for a, b in pairwise(cuts) if a < b]
