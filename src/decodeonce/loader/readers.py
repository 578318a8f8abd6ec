"""From shard files into slots: the two readers and the choice between them."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import SERVER_AWAY, DecodeonceError, StoreError
from decodeonce.host import available_memory, network_file_system, read_ahead_bytes
from decodeonce.loader.order import Rows
from decodeonce.loader.settings import ReaderName
from decodeonce.loader.slots import Pixels
from decodeonce.store import Store, disk
from decodeonce.store.checks import (
    check_file,
    check_not_replaced,
    check_shard,
    damaged_row_error,
    unreadable_shard_error,
)
from decodeonce.store.hashing import first_wrong_row
from decodeonce.store.layout import verify_command
from decodeonce.store.regular_files import read_at, reading

# Asking for a row that is in memory takes 2 us, a tenth of copying it. Looking at 16 rows takes 40 us, which is too
# much for every batch of 2,500 us.
LOOKS = 16
LOOK_EVERY = 4

Part = Callable[[], object]


class Span(NamedTuple):
    """Rows that are neighbours on disk: items [first, last) of the rows asked for are at `offset` in a shard's file."""

    first: int
    last: int
    shard: int
    offset: int


class ShardFiles:
    """File descriptors of shards. One thread may call `open`; any thread may call `spans` and `fd`."""

    def __init__(self, store: Store) -> None:
        shards = store.manifest.shards
        self.paths = [store.paths.root / shard.file for shard in shards]
        self.row_bytes = store.manifest.row_bytes
        self._manifest = store.manifest
        self._origins = np.array([shard.offset(0) for shard in shards], np.int64)
        self._fds: dict[int, int] = {}
        self.close = weakref.finalize(self, _close_all, self._fds)  # a second call does nothing

    def open(self, rows: Rows) -> list[int]:
        """Open the shards that hold `rows`, and return their numbers; StoreError if one differs from the manifest."""
        shards: list[int] = np.unique(self._manifest.shard_indexes(rows)).tolist()
        for shard in shards:
            if shard not in self._fds:
                self._fds[shard] = self._open(shard)
        return shards

    def check(self, rows: Rows) -> None:
        """Raise StoreError if a file that holds `rows` is now shorter than the manifest says."""
        for shard in self.open(rows):
            found, expected = os.fstat(self._fds[shard]).st_size, self._manifest.shards[shard].bytes
            if found < expected:
                raise ends_early(self.paths[shard], found, expected)

    def fd(self, shard: int) -> int:
        """The descriptor of an open shard."""
        return self._fds[shard]

    def spans(self, rows: Rows) -> Iterator[Span]:
        """Where `rows` are, in as few spans as their sequence allows."""
        shards = self._manifest.shard_indexes(rows)
        offsets = self._origins[shards] + rows * self.row_bytes
        breaks = np.flatnonzero((rows[1:] != rows[:-1] + 1) | (shards[1:] != shards[:-1])) + 1
        firsts, lasts = np.append(0, breaks), np.append(breaks, len(rows))
        # Lists all at once: 256 rows took 230 us with NumPy's numbers one by one.
        return map(Span, firsts.tolist(), lasts.tolist(), shards[firsts].tolist(), offsets[firsts].tolist())

    def _open(self, shard: int) -> int:
        path, manifest = self.paths[shard], self._manifest
        try:
            check_shard(path, manifest.shards[shard], manifest.container)  # a file may change after a store is opened
            with reading(path, buffering=0) as file:
                check_not_replaced(path.parent, manifest, path)
                # The kernel's own read-ahead costs more than it gives: 1.45 GB/s of random rows from a cold disk with
                # this, 0.94 without. Rows that are needed next are asked for explicitly: see read_ahead.py.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                return os.dup(file.fileno())
        except OSError as error:
            raise unreadable_shard_error(path, error) from error


def ends_early(path: Path, found: int, expected: int) -> StoreError:
    """The error for a shard that was cut short."""
    command = verify_command(path.parent)
    return StoreError(f"{path}: ends at byte {found}, expected {expected} at least; run {command}")


def _close_all(fds: dict[int, int]) -> None:
    while fds:
        disk.close(fds.popitem()[1])


class Reader:
    """Reads rows into slots with `threads` threads: each run of consecutive rows with one preadv.

    With `verify`, the thread that copied a row also checks it.

    Raises:
        StoreError: If `verify` is set and checksums.npy or a column differs from what was written.
    """

    name = "pread"

    def __init__(self, store: Store, files: ShardFiles, threads: int, *, verify: bool = False) -> None:
        self._store, self._files, self.threads = store, files, threads
        self._remote = network_file_system(store.paths.root) is not None
        self._piece = read_ahead_bytes(store.paths.root)
        self._hints, self._cold = 0, False
        self._checksums: NDArray[np.uint64] | None = None
        if verify:
            manifest = store.manifest
            for file in (store.paths.checksums.name, *(column.file for column in manifest.columns)):
                check_file(store.paths.root / file, manifest.files[file])
            self._checksums = np.asarray(store.checksums)
        self._labels = np.asarray(store.labels)
        # Booleans and numbers, which torch has tensors for. Columns of text stay in the store.
        self._columns = {name: np.asarray(a) for name, a in store.columns.items() if a.dtype.kind in "biufc"}

    def arrays(self, rows: Rows) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """The labels and the columns of these rows."""
        return self._labels[rows], {name: column[rows] for name, column in self._columns.items()}

    def parts(self, rows: Rows, out: Pixels) -> list[Part]:
        """One call per thread; together they fill out[i] with row rows[i] and touch nothing else."""
        self._prepare(rows)
        cuts = [len(rows) * share // self.threads for share in range(self.threads + 1)]
        return [partial(self._fill, rows[a:b], out[a:b]) for a, b in pairwise(cuts) if a < b]

    def hint(self, rows: Rows) -> Part | None:
        """A call that has these rows read ahead, on any thread; None if the last look at a few found all in memory.

        A copying thread has one read under way, which is too little for most storage: docs/benchmarks.md has figures.

        The call takes long if the storage's queue is full, and because the kernel works page by page.
        """
        if not len(rows):
            return None
        with suppress(DecodeonceError):  # a damaged shard is reported by its reader
            if self._hints % LOOK_EVERY == 0:
                self._cold = self._any_cold(rows[:: -(-len(rows) // LOOKS)])
            self._hints += 1
            if self._cold:
                self._files.open(rows)
                return partial(self._ask, rows)
        return None

    def _ask(self, rows: Rows) -> None:
        for span in self._files.spans(rows):
            fd, end = self._files.fd(span.shard), span.offset + (span.last - span.first) * self._files.row_bytes
            for start in range(span.offset, end, self._piece):
                os.posix_fadvise(fd, start, min(self._piece, end - start), os.POSIX_FADV_WILLNEED)

    def _any_cold(self, rows: Rows) -> bool:
        self._files.open(rows)
        byte = bytearray(1)
        try:
            for span in self._files.spans(rows):
                os.preadv(self._files.fd(span.shard), [byte], span.offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:  # this file system cannot tell
            return self._remote
        return False

    def _fill(self, rows: Rows, out: Pixels) -> None:
        self._copy(rows, out)
        if self._checksums is None:
            return
        checksums = self._checksums[rows].tolist()
        wrong = first_wrong_row(out.data.cast("B"), self._files.row_bytes, checksums)
        if wrong is not None:
            raise damaged_row_error(self._store.paths.root, self._store.manifest, int(rows[wrong]))

    def _prepare(self, rows: Rows) -> None:
        """Get ready to copy these rows; one thread calls this, before the others copy."""
        self._files.open(rows)

    def _copy(self, rows: Rows, out: Pixels) -> None:
        target, size = out.data.cast("B"), self._files.row_bytes
        for span in self._files.spans(rows):
            self._read(span, int(rows[span.first]), target[span.first * size : span.last * size])

    def _read(self, span: Span, row: int, target: memoryview) -> None:
        path = self._files.paths[span.shard]
        try:
            got = read_at(self._files.fd(span.shard), target, span.offset)
        except OSError as error:
            if error.errno in (errno.ESTALE, *SERVER_AWAY):
                raise unreadable_shard_error(path, error) from error
            raise StoreError(f"{path}: row {row} cannot be read: {error.strerror}") from error
        if got < target.nbytes:
            raise ends_early(path, span.offset + got, span.offset + target.nbytes)


class MmapReader(Reader):
    """Copies out of mappings: Images.take straight into the slot.

    If a file is cut short, reading its mapping kills the process (SIGBUS). So sizes are checked before each batch; a
    file that is cut after the check still kills it. With pread that is an error at any time. A file server that goes
    away causes the same signal, so make_reader does not use this on a network file system.
    """

    name = "mmap"

    # Measured on two cores of an AMD EPYC 9005, 50 MB batches, page cache warm, GB/s on one and two threads: np.take
    # 18.3 and 20.0, np.copyto of rows in a row 17.3 and 17.9, torch.index_select 15.4 and 17.5, preadv 11.3 and 13.9.
    # A first pass over a mapping ran at 11.5 on one thread; MADV_POPULATE_READ beforehand cost as much as it saved.

    def _prepare(self, rows: Rows) -> None:
        self._files.check(rows)

    def _copy(self, rows: Rows, out: Pixels) -> None:
        self._store.images.take(rows, out)


def make_reader(store: Store, files: ShardFiles, name: ReaderName, threads: int, *, verify: bool) -> tuple[Reader, str]:
    """The reader and why it was chosen; the caller closes `files`."""
    network, memory = network_file_system(store.paths.root), available_memory()
    nbytes, chosen = len(store.rows) * store.manifest.row_bytes, "pread"
    if network is not None and name != "pread":
        why = f"on {network} a mapping would fault page by page, and end the process if the server is lost"
    elif name != "auto":
        chosen, why = name, "asked for"
    elif memory is not None and nbytes > memory / 2:
        why = f"{nbytes / 1e9:.1f} GB of rows, more than half of {memory / 1e9:.1f} GB of available memory"
    else:
        chosen, why = "mmap", "a local file system, and the rows fit into half of the available memory"
    return (Reader if chosen == "pread" else MmapReader)(store, files, threads, verify=verify), why
