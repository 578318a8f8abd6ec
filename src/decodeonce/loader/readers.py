"""Read rows from shard files into slots: the two readers, and the choice between them."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import SERVER_DOWN_ERRORS, DecodeonceError, StoreError
from decodeonce.host import available_memory, network_file_system, read_ahead_bytes
from decodeonce.loader.buffers import Pixels
from decodeonce.loader.order import Rows
from decodeonce.store import Store, disk
from decodeonce.store.checks import check_file, damaged_row_error, unreadable_shard_error
from decodeonce.store.files import read_at
from decodeonce.store.hashing import first_wrong_row
from decodeonce.store.layout import verify_command
from decodeonce.store.reader import ends_early, map_rows, open_shard, runs

# Reading ahead a row that is in the page cache takes 2 us, a tenth of the time to copy it. Checking 16 rows takes 40
# us, which is too much for every batch of 2,500 us.
CHECKED_ROWS = 16
CHECK_EVERY = 4

ReaderName = Literal["auto", "pread", "mmap"]
Call = Callable[[], object]


class Span(NamedTuple):
    """Consecutive rows on disk: the requested rows with indexes [first, last) start at `offset` in a shard's file."""

    first: int
    last: int
    shard: int
    offset: int


class Reader:
    """Read rows into slots with `threads` threads and one preadv per run of consecutive rows.

    Only one thread can call `open`, `calls` and `hint`; any thread can run the calls that they return. With `verify`,
    the thread that copied a row also checks it. Hints are needed because a copying thread has a single read in
    progress, which is too little for most storage (docs/contribute/lab-notes.md). A hint takes long if the queue of the
    storage is full, and because the kernel works page by page.

    Raises:
        StoreError: If `verify` is set and checksums.npy or a column is damaged.
    """

    name = "pread"

    def __init__(self, store: Store, threads: int, *, verify: bool = False) -> None:
        self.manifest, self.row_bytes, self.threads = store.manifest, store.manifest.row_bytes, threads
        self._root, shards = store.paths.root, self.manifest.shards
        self.paths = [self._root / shard.file for shard in shards]
        self._origins = np.array([shard.offset(0) for shard in shards], np.int64)
        self._fds: dict[int, int] = {}
        self.close = weakref.finalize(self, _close_all, self._fds)  # a second call does nothing
        self._hints, self._cold = 0, False
        self._checksums = _checked_checksums(store) if verify else None
        self._labels = np.asarray(store.labels)
        # Only booleans and numbers: torch has no tensors of text.
        self._columns = {name: np.asarray(a) for name, a in store.columns.items() if a.dtype.kind in "biufc"}

    def open(self, rows: Rows) -> list[int]:
        """Open the shards that hold `rows` and return their numbers. StoreError if one differs from the manifest."""
        shards: list[int] = np.unique(self.manifest.shard_indexes(rows)).tolist()
        for shard in shards:
            if shard not in self._fds:
                self._fds[shard] = self._open(shard)
        return shards

    def spans(self, rows: Rows) -> Iterator[Span]:
        """Group `rows`, in the given order, into as few spans as possible."""
        shards = self.manifest.shard_indexes(rows)
        offsets = self._origins[shards] + rows * self.row_bytes
        breaks = np.flatnonzero((rows[1:] != rows[:-1] + 1) | (shards[1:] != shards[:-1])) + 1
        firsts, lasts = np.append(0, breaks), np.append(breaks, len(rows))
        # Convert whole arrays to lists: with NumPy scalars, 256 rows took 230 us.
        return map(Span, firsts.tolist(), lasts.tolist(), shards[firsts].tolist(), offsets[firsts].tolist())

    def _open(self, shard: int) -> int:
        fd = open_shard(self._root, self.manifest, self.manifest.shards[shard])
        # Turn the kernel's own read-ahead off: random rows from a cold disk were read at 1.45 GB/s without it, and at
        # 0.94 GB/s with it. The rows needed next are requested explicitly (see partition.read_ahead).
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd

    def arrays(self, rows: Rows) -> tuple[NDArray[np.generic], dict[str, NDArray[np.generic]]]:
        """The labels and columns of these rows."""
        return self._labels[rows], {name: column[rows] for name, column in self._columns.items()}

    def calls(self, rows: Rows, out: Pixels) -> list[Call]:
        """One call per thread. Together the calls fill out[i] with row rows[i], and write nothing else."""
        self._prepare(rows)
        copy = self._copy if self._checksums is None else partial(self._copy_verified, self._checksums)
        cuts = [len(rows) * share // self.threads for share in range(self.threads + 1)]
        return [partial(copy, rows[a:b], out[a:b]) for a, b in pairwise(cuts) if a < b]

    def hint(self, rows: Rows) -> Call | None:
        """A call that reads these rows ahead; None if the last check of a few rows found all in the page cache."""
        if not len(rows):
            return None
        with suppress(DecodeonceError, OSError):  # a damaged shard or a dead server is reported when a row is read
            if self._hints % CHECK_EVERY == 0:
                self._cold = self._any_cold(rows[:: -(-len(rows) // CHECKED_ROWS)])
            self._hints += 1
            if self._cold:
                self.open(rows)
                return partial(self._read_ahead, rows)
        return None

    def _read_ahead(self, rows: Rows) -> None:
        piece = read_ahead_bytes(self._root)
        for span in self.spans(rows):
            fd, end = self._fds[span.shard], span.offset + (span.last - span.first) * self.row_bytes
            for start in range(span.offset, end, piece):
                os.posix_fadvise(fd, start, min(piece, end - start), os.POSIX_FADV_WILLNEED)

    def _any_cold(self, rows: Rows) -> bool:
        self.open(rows)
        byte = bytearray(1)
        try:
            for span in self.spans(rows):
                os.preadv(self._fds[span.shard], [byte], span.offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:  # this file system does not support RWF_NOWAIT
            return network_file_system(self._root) is not None
        return False

    def _copy_verified(self, checksums: NDArray[np.uint64], rows: Rows, out: Pixels) -> None:
        self._copy(rows, out)
        wrong = first_wrong_row(out.data.cast("B"), self.row_bytes, checksums[rows].tolist())
        if wrong is not None:
            raise damaged_row_error(self._root, self.manifest, int(rows[wrong]))

    def _prepare(self, rows: Rows) -> None:
        """Prepare to copy these rows. A single thread calls this before the others copy."""
        self.open(rows)

    def _copy(self, rows: Rows, out: Pixels) -> None:
        target, size = out.data.cast("B"), self.row_bytes
        for span in self.spans(rows):
            self._read(span, int(rows[span.first]), target[span.first * size : span.last * size])

    def _read(self, span: Span, row: int, target: memoryview) -> None:
        path = self.paths[span.shard]
        try:
            nbytes = read_at(self._fds[span.shard], target, span.offset)
        except OSError as error:
            if error.errno in (errno.ESTALE, *SERVER_DOWN_ERRORS):
                raise unreadable_shard_error(path, error) from error
            command = verify_command(path.parent)
            raise StoreError(f"{path}: row {row} cannot be read: {error.strerror}; run {command}") from error
        if nbytes < target.nbytes:
            raise ends_early(path, span.offset + nbytes, span.offset + target.nbytes)


class MmapReader(Reader):
    """Copy whole rows from mapped files directly into slots.

    Reading the mapping of a truncated file kills the process (SIGBUS). So sizes are checked before each batch, but a
    file that is truncated after the check still kills the process. With pread, truncation always is an error. Losing a
    file server causes the same signal, so make_reader does not use this class on network file systems.
    """

    name = "mmap"

    # Measured with batches of 50 MB from a warm page cache on two cores of an AMD EPYC 9005, in GB/s with one and two
    # threads: np.take 18.3 and 20.0, np.copyto row by row 17.3 and 17.9, torch.index_select 15.4 and 17.5, preadv 11.3
    # and 13.9. A first pass over a mapping ran at 11.5 with one thread. MADV_POPULATE_READ cost as much as it saved.

    def __init__(self, store: Store, threads: int, *, verify: bool = False) -> None:
        super().__init__(store, threads, verify=verify)
        self._mapped: dict[int, Pixels] = {}

    def _prepare(self, rows: Rows) -> None:
        for number in self.open(rows):
            shard, path, fd = self.manifest.shards[number], self.paths[number], self._fds[number]
            if (found := os.fstat(fd).st_size) < shard.bytes:
                raise ends_early(path, found, shard.bytes)
            if number not in self._mapped:
                self._mapped[number] = map_rows(fd, path, shard)

    def _copy(self, rows: Rows, out: Pixels) -> None:
        out = out.reshape(len(rows), self.row_bytes)
        shards = self.manifest.shard_indexes(rows)
        for start, end in runs(shards[1:] != shards[:-1]):
            number = int(shards[start])
            places = rows[start:end] - self.manifest.shards[number].first_row
            # mode="clip" writes directly into out; the default "raise" buffers all of it (see NumPy's documentation).
            np.take(self._mapped[number], places, axis=0, out=out[start:end], mode="clip")


def make_reader(store: Store, name: ReaderName, threads: int, *, verify: bool) -> tuple[Reader, str]:
    """Create a reader; return it and the reason for the choice."""
    network, memory = network_file_system(store.paths.root), available_memory()
    nbytes, chosen = len(store.rows) * store.manifest.row_bytes, "pread"
    if network is not None and name != "pread":
        why = f"on {network}, mmap would read page by page, and kill the process if the server is lost"
    elif name != "auto":
        chosen, why = name, "requested"
    elif memory is not None and nbytes > memory / 2:
        why = f"{nbytes / 1e9:.1f} GB of rows exceed half of the {memory / 1e9:.1f} GB of available memory"
    else:
        chosen, why = "mmap", "a local file system, and the rows fit into half of the available memory"
    return (Reader if chosen == "pread" else MmapReader)(store, threads, verify=verify), why


def _checked_checksums(store: Store) -> NDArray[np.uint64]:
    for file in (store.paths.checksums.name, *(column.file for column in store.manifest.columns)):
        check_file(store.paths.root / file, store.manifest.files[file])
    return np.asarray(store.checksums)


def _close_all(fds: dict[int, int]) -> None:
    while fds:
        disk.close(fds.popitem()[1])
