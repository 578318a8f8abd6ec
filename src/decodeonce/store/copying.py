"""Copy rows of a store into the shards of a staged part, in pieces. Each row is verified while it is in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError, add_path_to_errors
from decodeonce.host import allow_open_files
from decodeonce.store.hashing import first_wrong_row
from decodeonce.store.layout import verify_command
from decodeonce.store.pieces import Piece, pieces, rows_per_piece
from decodeonce.store.reader import Store
from decodeonce.store.regular_files import read_at, reading
from decodeonce.store.shard_file import ShardFile, page_aligned_buffer


def copy_rows(
    source: Store,
    dest: Path,
    rows: range,
    checksums: NDArray[np.uint64],
    *,
    threads: int,
    resumed: bool,
    progress: Callable[[int], None],
) -> int:
    """Copy rows of a store into the shards in the folder `dest`. The shards must already have their full size.

    Args:
        source: The store.
        dest: The folder of the part.
        rows: The rows to copy.
        checksums: Checksums of these rows, uint64 (len(rows),).
        threads: Number of pieces copied at the same time.
        resumed: Whether an earlier attempt may have copied some rows. Pieces that are already right are skipped.
        progress: Called with the number of rows since the last call.

    Returns:
        The number of copied rows.

    Raises:
        StoreError: If a row of the store is damaged.
    """
    total = 0
    with ExitStack() as opened, ThreadPoolExecutor(threads) as pool:
        copier = _RowCopier(source, dest, rows, checksums, opened, resumed=resumed, threads=threads)
        try:
            todo = pieces(source.manifest, rows)
            for piece, copied in zip(pieces(source.manifest, rows), pool.map(copier.copy, todo), strict=True):
                total += copied
                progress(len(piece.rows))
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, each thread stops at the end of its piece
    return total


class _RowCopier:
    """Copies pieces between open shards, with one buffer per thread."""

    def __init__(
        self,
        source: Store,
        dest: Path,
        rows: range,
        checksums: NDArray[np.uint64],
        opened: ExitStack,
        *,
        resumed: bool,
        threads: int,
    ) -> None:
        self._root, self._row_bytes = source.paths.root, source.manifest.row_bytes
        self._first_row, self._checksums, self._resumed = rows.start, checksums, resumed
        self._buffers: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(threads):
            self._buffers.put(page_aligned_buffer(rows_per_piece(source.manifest) * self._row_bytes))
        self._fds: dict[str, int] = {}
        self._targets: dict[str, ShardFile] = {}
        shards = [shard for shard in source.manifest.shards if shard.held_rows(rows)]
        allow_open_files(3 * len(shards))
        for shard in shards:
            fd = opened.enter_context(reading(self._root / shard.file, buffering=0)).fileno()
            _advise(fd)
            self._fds[shard.file] = fd
            self._targets[shard.file] = opened.enter_context(ShardFile(dest / shard.file))

    def copy(self, piece: Piece) -> int:
        """Copy a piece unless it is already there, and return the number of copied rows."""
        buffer = self._buffers.get()
        try:
            return self._copy_through(buffer[: piece.nbytes], piece)
        finally:
            self._buffers.put(buffer)

    def _copy_through(self, data: memoryview, piece: Piece) -> int:
        path, target = self._root / piece.shard.file, self._targets[piece.shard.file]
        if self._resumed and target.read(data, piece.offset) == len(data) and self._bad_row(data, piece) is None:
            return 0
        with add_path_to_errors(path):
            got = read_at(self._fds[piece.shard.file], data, piece.offset)
        if got < len(data):
            expected = f"expected {piece.shard.bytes}; run {verify_command(self._root)}"
            raise StoreError(f"{path}: ends at byte {piece.offset + got}, {expected}")
        if (bad := self._bad_row(data, piece)) is not None:
            raise StoreError(f"{path}: row {bad} does not match its checksum; run {verify_command(self._root)}")
        target.write(data, piece.offset)
        return len(piece.rows)

    def _bad_row(self, data: memoryview, piece: Piece) -> int | None:
        """Return the number of the piece's first row with a wrong checksum."""
        first, last = (row - self._first_row for row in (piece.rows.start, piece.rows.stop))
        index = first_wrong_row(data, self._row_bytes, self._checksums[first:last].tolist())
        return None if index is None else piece.rows[index]


def _advise(fd: int) -> None:
    """Ask the kernel to read far ahead, and to evict these pages before those of others (NOREUSE: Linux 6.3)."""
    # GB/s with eight threads and a cold cache: 0.8 to 1.3 without advice, 1.5 to 1.9 with SEQUENTIAL, 1.1 to 1.4 with
    # WILLNEED per piece.
    for advice in (os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_NOREUSE):
        os.posix_fadvise(fd, 0, 0, advice)
