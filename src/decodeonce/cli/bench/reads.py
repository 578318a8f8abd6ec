"""How fast rows come from their files, without a Loader: many reads under way, each of whole rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from decodeonce.loader.order import derive_key, make_order
from decodeonce.loader.shards import ShardFiles
from decodeonce.loader.steps import Rows
from decodeonce.store.files import page_aligned_buffer, read_at

# As many reads at a time as storage needs to be busy: of single rows 32, of long runs 4 (docs/benchmarks.md).
RANDOM_THREADS, THREADS = 32, 4
SEQUENTIAL_BYTES = 8 << 20
CHUNK = 256


class Piece(NamedTuple):
    """Bytes of an open file."""

    fd: int
    offset: int
    nbytes: int


def random_rows(files: ShardFiles, rows: range) -> Iterator[Piece]:
    """Single rows of a range, each once, in an order as the Loader's."""
    order = make_order("full", len(rows), 1, derive_key(0))
    for first in range(0, len(rows), CHUNK):
        positions = np.arange(first, min(first + CHUNK, len(rows)))
        yield from _pieces(files, rows.start + order.rows(positions))


def rows_in_order(files: ShardFiles, rows: range) -> Iterator[Piece]:
    """All rows of a range in runs of a few MB."""
    step = max(1, SEQUENTIAL_BYTES // files.row_bytes)
    for first in range(rows.start, rows.stop, step):
        yield from _pieces(files, np.arange(first, min(first + step, rows.stop)))


def _pieces(files: ShardFiles, rows: Rows) -> Iterator[Piece]:
    files.open(rows)
    for span in files.spans(rows):
        yield Piece(files.fd(span.shard), span.offset, (span.last - span.first) * files.row_bytes)


class Reads:
    """Threads that read pieces until there are none, or time is over."""

    def __init__(self, pieces: Iterable[Piece], threads: int, seconds: float) -> None:
        self._pieces = iter(pieces)
        self._lock = threading.Lock()
        self._threads, self._seconds = threads, seconds
        self._bytes = 0
        self._failures: list[OSError] = []

    def bytes_per_s(self) -> float:
        """Of all of them together; raises the OSError of a read that failed."""
        start = time.perf_counter()
        self._until = start + self._seconds
        threads = [threading.Thread(target=self._read) for _ in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        return self._bytes / (time.perf_counter() - start)

    def _read(self) -> None:
        buffer = page_aligned_buffer(0)
        while (piece := self._next()) is not None:
            if len(buffer) < piece.nbytes:
                buffer = page_aligned_buffer(piece.nbytes)
            try:
                got = read_at(piece.fd, buffer[: piece.nbytes], piece.offset)
            except OSError as error:
                self._failures.append(error)
                return
            with self._lock:
                self._bytes += got

    def _next(self) -> Piece | None:
        with self._lock:
            late = self._bytes and time.perf_counter() > self._until
            return None if late or self._failures else next(self._pieces, None)
