"""Read rows from shard files into slots: with preadv, from mapped files, or past the page cache (direct.py).

`choose_reader` chooses how, by the file system and by the size of the store compared with memory.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import SERVER_DOWN_ERRORS, TRANSIENT_ERRORS, DecodeonceError, StoreError
from decodeonce.host import available_memory, is_in_memory, network_file_system, read_ahead_bytes
from decodeonce.loader.buffers import page_aligned
from decodeonce.loader.order import Rows
from decodeonce.store import Store, disk
from decodeonce.store.checks import check_file, damaged_row_error, unreadable_shard_error
from decodeonce.store.files import read_at
from decodeonce.store.hashing import first_wrong_row
from decodeonce.store.layout import verify_command
from decodeonce.store.manifest import Manifest
from decodeonce.store.pixels import Pixels
from decodeonce.store.reader import ends_early, map_rows, open_shard, runs

# Reading ahead a row that is in the page cache takes 2 us, a tenth of the time to copy it. Checking 16 rows takes 40
# us, which is too much for every batch of 2,500 us.
CHECKED_ROWS = 16
CHECK_EVERY = 4
# Of the memory that is available when a Loader is created. The rest is for other files and for the program itself.
KEPT_MEMORY = 0.8

ReaderName = Literal["auto", "pread", "mmap", "direct"]
Call = Callable[[], object]


class Span(NamedTuple):
    """Consecutive rows on disk: the requested rows with indexes [first, last) start at `offset` in a shard's file."""

    first: int
    last: int
    shard: int
    offset: int


class Scratch(threading.local):
    """Page-aligned memory of a thread, which grows as needed."""

    _memory = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Pixels:
        """Return the first bytes of the memory. They are valid until the next call in the same thread."""
        if self._memory.nbytes < nbytes:
            self._memory = np.frombuffer(page_aligned(nbytes), np.uint8)
        return self._memory[:nbytes]


class Reader:
    """Makes the calls that read rows into slots, for `threads` threads, with one preadv per run of consecutive rows.

    Only one thread can call `open`, `calls` and `hint`; any thread can run the calls that they return. Hints are needed
    because a copying thread has a single read in progress, which is too little for most storage
    (docs/contribute/lab-notes.md). A hint takes long if the queue of the storage is full, and because the kernel works
    page by page.

    Attributes:
        checksums: If not None, the thread that copied a row compares it with its checksum.
        unpacked_manifest: If not None, slots hold rows with unpacked images, which have this manifest. The thread that
            copied a row then unpacks its image.

    Raises:
        StoreError: If labels.npy is damaged, or the dtype or shape of a column is wrong.
    """

    checksums: NDArray[np.uint64] | None = None
    unpacked_manifest: Manifest | None = None
    _packed = Scratch()  # of each thread, for rows that it unpacks

    def __init__(self, store: Store, threads: int) -> None:
        self.manifest, self.row_bytes, self.threads = store.manifest, store.manifest.row_bytes, threads
        self._root, shards = store.paths.root, self.manifest.shards
        self.paths = [self._root / shard.file for shard in shards]
        self._origins = np.array([shard.offset(0) for shard in shards], np.int64)
        self._fds: dict[int, int] = {}
        self.close = weakref.finalize(self, close_all, self._fds)  # a second call does nothing
        self._hints, self._cold = 0, False
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
        # 0.94 GB/s with it. The rows needed next are requested explicitly (see partition.add_hints).
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd

    def arrays(self, rows: Rows) -> tuple[NDArray[np.generic], dict[str, NDArray[np.generic]]]:
        """The labels and columns of these rows."""
        return self._labels[rows], {name: column[rows] for name, column in self._columns.items()}

    def calls(self, rows: Rows, out: Pixels) -> list[Call]:
        """At most one call per thread. Together the calls fill out[i] with row rows[i], and write nothing else."""
        self._prepare(rows)
        copy = self._copy if self.checksums is None else partial(self._copy_verified, self.checksums)
        copy = partial(self._copy_unpacked, self.unpacked_manifest, copy) if self.unpacked_manifest else copy
        cuts = [len(rows) * share // self.threads for share in range(self.threads + 1)]
        return [partial(copy, rows[a:b], out[a:b]) for a, b in pairwise(cuts) if a < b]

    def _prepare(self, rows: Rows) -> None:
        """Open what the next calls need, in the thread that makes them."""
        self.open(rows)

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
                return partial(self._request_pages, rows)
        return None

    def _request_pages(self, rows: Rows) -> None:
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

    def _copy_unpacked(
        self, unpacked_manifest: Manifest, copy: Callable[[Rows, Pixels], None], rows: Rows, out: Pixels
    ) -> None:
        packed = self._packed.take(len(rows) * self.row_bytes).reshape(len(rows), self.row_bytes)
        copy(rows, packed)
        stored, wanted = self.manifest.views(packed), unpacked_manifest.views(out.reshape(len(rows), -1))
        self.manifest.unpack(stored.pop("images"), out=wanted["images"])
        for name, array in stored.items():
            wanted[name][...] = array

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
    file server causes the same signal, so choose_reader does not choose this class on network file systems.
    """

    # Measured with batches of 50 MB from a warm page cache on two cores of an AMD EPYC 9005, in GB/s with one and two
    # threads: np.take 18.3 and 20.0, np.copyto row by row 17.3 and 17.9, torch.index_select 15.4 and 17.5, preadv 11.3
    # and 13.9. A first pass over a mapping ran at 11.5 with one thread. MADV_POPULATE_READ cost as much as it saved.

    def __init__(self, store: Store, threads: int) -> None:
        super().__init__(store, threads)
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


class Choice(NamedTuple):
    """The name of a reader, why it was chosen, and the share of the rows that it leaves in the page cache."""

    name: ReaderName
    why: str
    kept: float = 1.0


def choose_reader(root: Path, nbytes: int, name: ReaderName = "auto", slot_bytes: int = 0) -> Choice:
    """Choose a reader for the store at `root` with `nbytes` of rows, and a Loader with `slot_bytes` of batches."""
    network, memory = network_file_system(root), available_memory()
    if network is not None and name != "pread":
        mmap = "mmap would read page by page, and kill the process if the server is lost"
        return Choice("pread", f"on {network}, {mmap}; direct reads would not use the node's cache")
    why = "requested"
    if name == "auto":
        if memory is None:
            return Choice("mmap", "a local file system, and how much memory is available is unknown")
        if nbytes <= memory / 2:
            return Choice("mmap", "a local file system, and the rows fit into half of the available memory")
        why = f"{nbytes / 1e9:.1f} GB of rows exceed half of the {memory / 1e9:.1f} GB of available memory"
        name = "pread" if is_in_memory(root) else "direct"
    return Choice(name, why) if name != "direct" else _choose_direct(nbytes, (memory or 0) - slot_bytes, why)


def _choose_direct(nbytes: int, memory: int, why: str) -> Choice:
    """Choose direct reads of the rows that do not fit into `memory` bytes, if there are any."""
    kept = kept_share(nbytes, memory)
    return Choice("direct", why, kept) if kept < 1 else Choice("pread", f"{why}, but all rows can stay in memory")


def kept_share(nbytes: int, memory: int) -> float:
    """The share of `nbytes` of rows to keep in `memory` bytes, with three decimals."""
    return round(min(1.0, max(0.0, KEPT_MEMORY * memory / nbytes)), 3)


def make_reader(
    store: Store, choice: Choice, threads: int, *, verify: bool, slot_manifest: Manifest | None = None
) -> tuple[Reader, dict[str, Any]]:
    """Create a reader; return it and, for `stats`, its name, why it was chosen, and its settings.

    `slot_manifest` is the manifest of the rows in slots, by default that of the store.
    """
    if choice.name == "direct":
        made, choice = _direct_reader(store, threads, choice)
    else:
        made = (MmapReader if choice.name == "mmap" else Reader)(store, threads)
    if verify:
        made.checksums = _checked_checksums(store)
    if slot_manifest and slot_manifest.pixels != store.manifest.pixels:
        made.unpacked_manifest = slot_manifest
    return made, {**choice._asdict(), "threads": made.threads}


def _direct_reader(store: Store, threads: int, choice: Choice) -> tuple[Reader, Choice]:
    """Create a reader for direct reads; one without them, and why, if the file system has none."""
    from decodeonce.loader.direct import DirectReader  # a store that fits into memory does not need it

    try:
        return DirectReader(store, threads, kept=choice.kept), choice
    except OSError as error:
        if error.errno in TRANSIENT_ERRORS:
            raise
        why = f"{choice.why}, but this file system has no direct reads ({error.strerror})"
        return Reader(store, threads), Choice("pread", why)


def _checked_checksums(store: Store) -> NDArray[np.uint64]:
    """Return the checksums of the rows. Raise StoreError if checksums.npy or a column is damaged."""
    for file in (store.paths.checksums.name, *(column.file for column in store.manifest.columns)):
        check_file(store.paths.root / file, store.manifest.files[file])
    return np.asarray(store.checksums)


def close_all(*opened: dict[int, int]) -> None:
    """Close the descriptors in these dicts, and empty them."""
    for fds in opened:
        while fds:
            disk.close(fds.popitem()[1])
