"""Rows out of a store's shards into those of a part, pieces at a time, each row checked on its way through memory."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError, naming
from decodeonce.host import allow_open_files
from decodeonce.store import disk
from decodeonce.store.checks import unreadable
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import verify_command
from decodeonce.store.manifest import Manifest
from decodeonce.store.reader import Store
from decodeonce.store.regular_files import read_at
from decodeonce.store.shard_file import PAGE, ShardFile, page_aligned_buffer

# Large enough for storage that takes long to answer, small enough for the processor's cache: a piece is hashed and
# written right after it was read.
PIECE_BYTES = 4 << 20


class Piece(NamedTuple):
    """Rows [first, last) of a shard, counted from its own first row."""

    shard: int
    first: int
    last: int


def pieces(manifest: Manifest, rows: range) -> Iterator[Piece]:
    """These rows of the store in their order; the pieces between the ends are whole pages where a few rows are."""
    step = max(1, PIECE_BYTES // manifest.row_bytes)
    whole_pages = PAGE // math.gcd(PAGE, manifest.row_bytes)
    if whole_pages <= 4 * step:
        step = -(-step // whole_pages) * whole_pages
    for index, shard in enumerate(manifest.shards):
        held = shard.held_rows(rows)
        first = held.start
        while first < held.stop:
            last = min(held.stop, (first // step + 1) * step)
            yield Piece(index, first, last)
            first = last


class RowCopier:
    """Copies rows of `source` into the shards in the folder `dest`, which have their size already.

    checksums: (len(rows),) uint64 of these rows. written: for each shard what its file in `dest` holds from an earlier
    attempt (see data_ranges). progress: called with numbers of rows, from any thread.
    """

    def __init__(
        self,
        source: Store,
        dest: Path,
        rows: range,
        checksums: NDArray[np.uint64],
        written: Sequence[Sequence[range]],
        progress: Callable[[int], None],
    ) -> None:
        self.copied = 0
        self._source, self._rows, self._progress = source, rows, progress
        self._dest, self._checksums, self._written = dest, checksums, written
        self._left = pieces(source.manifest, rows)
        self._lock = threading.Lock()
        most = max(piece.last - piece.first for piece in pieces(source.manifest, rows))
        self._buffer_bytes = most * source.manifest.row_bytes
        self._opened = ExitStack()
        self._fds: dict[int, int] = {}
        self._targets: dict[int, ShardFile] = {}

    def run(self, threads: int) -> int:
        """Copy with this many threads; returns the number of rows that were not there yet.

        Raises StoreError for a row that is not what was written, OSError, which names its file.
        """
        with self._opened, ThreadPoolExecutor(threads) as pool:
            self._open()
            working = [pool.submit(self._work) for _ in range(threads)]
            try:
                wait(working, return_when="FIRST_EXCEPTION")
            finally:
                with self._lock:  # whatever ended this ends the other threads with the piece they are at
                    self._left = iter(())
            for thread in working:
                thread.result()
        return self.copied

    def _open(self) -> None:
        shards = sorted({piece.shard for piece in pieces(self._source.manifest, self._rows)})
        allow_open_files(3 * len(shards))
        for index in shards:
            name = self._source.manifest.shards[index].file
            try:
                fd = os.open(self._source.paths.root / name, os.O_RDONLY)
            except OSError as error:
                raise unreadable(self._source.paths.root / name, error) from error
            self._opened.callback(disk.close, fd)
            _advise(fd)
            self._fds[index] = fd
            self._targets[index] = self._opened.enter_context(ShardFile(self._dest / name))

    def _work(self) -> None:
        buffer = page_aligned_buffer(self._buffer_bytes)
        while (piece := self._next()) is not None:
            copied = self._copy(piece, buffer)
            with self._lock:
                self.copied += copied
                self._progress(piece.last - piece.first)

    def _next(self) -> Piece | None:
        with self._lock:
            return next(self._left, None)

    def _copy(self, piece: Piece, buffer: memoryview) -> int:
        """Have a piece in its place; returns the number of rows that had to be copied."""
        shard, size = self._source.manifest.shards[piece.shard], self._source.manifest.row_bytes
        offset, rows = shard.data_offset + piece.first * size, piece.last - piece.first
        data = buffer[: rows * size]
        target = self._targets[piece.shard]
        if any(offset in run and offset + data.nbytes <= run.stop for run in self._written[piece.shard]):
            with naming(target.path):
                got = target.read(data, offset)
            if got == data.nbytes and self._bad_row(piece, data) is None:
                return 0
        path, verify = self._source.paths.root / shard.file, verify_command(self._source.paths.root)
        with naming(path):
            got = read_at(self._fds[piece.shard], data, offset)
        if got < data.nbytes:
            raise StoreError(f"{path}: ends at byte {offset + got}, expected {shard.bytes}; run {verify}")
        if (bad := self._bad_row(piece, data)) is not None:
            raise StoreError(f"{path}: row {bad} is not what was written; run {verify}")
        with naming(target.path):
            target.write(data, offset)
        return rows

    def _bad_row(self, piece: Piece, data: memoryview) -> int | None:
        """The number of the first of a piece's rows whose checksum is another."""
        size = self._source.manifest.row_bytes
        first = self._source.manifest.shards[piece.shard].first_row + piece.first
        for index in range(piece.last - piece.first):
            expected = int(self._checksums[first + index - self._rows.start])
            if row_checksum(data[index * size : (index + 1) * size]) != expected:
                return first + index
        return None


def _advise(fd: int) -> None:
    """Have the kernel read far ahead, and keep what others use rather than these pages (NOREUSE: Linux 6.3)."""
    # Eight threads, cold, GB/s: 0.8 to 1.3 without, 1.5 to 1.9 with SEQUENTIAL, 1.1 to 1.4 with WILLNEED a piece.
    for advice in ("POSIX_FADV_SEQUENTIAL", "POSIX_FADV_NOREUSE"):
        if hasattr(os, advice):
            os.posix_fadvise(fd, 0, 0, getattr(os, advice))
