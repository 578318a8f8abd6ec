"""Measure how fast this machine reads, copies and transfers the rows of a store without a Loader."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from decodeonce.loader.buffers import page_aligned_slot
from decodeonce.loader.delivery import Device, Shape
from decodeonce.loader.order import Rows, derive_key, make_order
from decodeonce.loader.readers import ShardFiles
from decodeonce.store.regular_files import read_at
from decodeonce.store.shard_file import page_aligned_buffer

# Concurrent reads that keep storage busy: 32 of single rows, 4 of long runs (docs/contribute/lab-notes.md).
RANDOM_READERS, READERS = 32, 4
SEQUENTIAL_BYTES = 8 << 20
CHUNK = 256  # rows
COPIERS = 2
COPY_SLOTS = 5  # as many as the Loader has, so that the destinations are equally cold
TRANSFER_SLOTS = 3


class Piece(NamedTuple):
    """A range of bytes of an open file."""

    fd: int
    offset: int
    nbytes: int


def random_rows(files: ShardFiles, rows: range) -> Iterator[Piece]:
    """Yield each row of a range once, in a random order like that of the Loader."""
    order = make_order("full", len(rows), 1, derive_key(0))
    for first in range(0, len(rows), CHUNK):
        positions = np.arange(first, min(first + CHUNK, len(rows)))
        yield from _pieces(files, rows.start + order.at(positions))


def rows_in_order(files: ShardFiles, rows: range) -> Iterator[Piece]:
    """Yield all rows of a range in order, in pieces of a few MB."""
    step = max(1, SEQUENTIAL_BYTES // files.row_bytes)
    for first in range(rows.start, rows.stop, step):
        yield from _pieces(files, np.arange(first, min(first + step, rows.stop)))


def _pieces(files: ShardFiles, rows: Rows) -> Iterator[Piece]:
    files.open(rows)
    for span in files.spans(rows):
        yield Piece(files.fd(span.shard), span.offset, (span.last - span.first) * files.row_bytes)


def read_rate(pieces: Iterable[Piece], threads: int, seconds: float) -> float:
    """Read pieces for about `seconds`, or until none is left; return bytes/s."""
    left, lock = iter(pieces), threading.Lock()
    start = time.perf_counter()

    def read(_: int) -> int:
        buffer, nbytes = page_aligned_buffer(0), 0
        while not nbytes or time.perf_counter() - start < seconds:
            with lock:
                piece = next(left, None)
            if piece is None:
                break
            if len(buffer) < piece.nbytes:
                buffer = page_aligned_buffer(piece.nbytes)
            nbytes += read_at(piece.fd, buffer[: piece.nbytes], piece.offset)
        return nbytes

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, range(threads))) / (time.perf_counter() - start)


def copy_rate(shape: Shape, batches: int, seconds: float) -> float:
    """Copy `batches` batches in memory with two threads for about `seconds`; return bytes/s."""
    sources = [page_aligned_slot(shape).pixels for _ in range(batches)]
    for batch in sources:
        batch.fill(1)
    slots = [page_aligned_slot(shape).pixels for _ in range(COPY_SLOTS)]

    def copy(number: int) -> None:
        for step, batch in enumerate(sources):
            part = slice(number * len(batch) // COPIERS, (number + 1) * len(batch) // COPIERS)
            np.copyto(slots[step % COPY_SLOTS][part], batch[part])

    with ThreadPoolExecutor(COPIERS) as pool:
        list(pool.map(copy, range(COPIERS)))  # the first write to the buffers is slow
        rounds, start = 0, time.perf_counter()
        while not rounds or time.perf_counter() - start < seconds:
            list(pool.map(copy, range(COPIERS)))
            rounds += 1
        return rounds * batches * math.prod(shape) / (time.perf_counter() - start)


def transfer_rate(device: Device, shape: Shape, seconds: float) -> float:
    """Copy batches from page-locked memory to the device on a separate stream for about `seconds`; return bytes/s.

    A copy is queued before the previous ones are done, so that the device never waits for this thread.
    """
    slots = [device.pinned(shape) for _ in range(TRANSFER_SLOTS)]
    consumers = device.current_stream()
    device.set_stream(device.stream())
    try:
        for slot in slots:  # the first uploads allocate
            device.upload(slot)
        device.record().synchronize()
        copied: deque[Any] = deque()
        start = time.perf_counter()
        for sent in count(1):
            device.upload(slots[sent % TRANSFER_SLOTS])
            copied.append(device.record())
            if time.perf_counter() - start >= seconds:
                break
            if len(copied) == TRANSFER_SLOTS:
                copied.popleft().synchronize()
        copied[-1].synchronize()
        return sent * slots[0].nbytes / (time.perf_counter() - start)
    finally:
        device.set_stream(consumers)
