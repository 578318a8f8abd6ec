"""Reading ahead: the kernel hears what coming steps need, so that storage has many reads to do at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from decodeonce.errors import DecodeonceError
from decodeonce.host import available_memory, network_file_system, read_ahead_bytes
from decodeonce.loader.order import WINDOW_BLOCKS, WindowOrder
from decodeonce.loader.partition import Partition
from decodeonce.loader.shards import ShardFiles
from decodeonce.loader.steps import Rows, Step
from decodeonce.store import Store

# Storage that gives 10 GB/s, and takes 6 ms to, is kept busy by this much.
AHEAD_BYTES = 64 << 20
# Asking for rows that are in memory takes 2 us each, a tenth of copying them; a look at 16 of them takes 40 us, which
# is still too much for each batch of 2,500 us.
LOOKS = 16
LOOK_EVERY = 4


class ReadAhead:
    """Asks the kernel for rows that are not in memory.

    A thread that copies has one read under way, which is too little for most storage: docs/benchmarks.md has figures.
    """

    def __init__(self, store: Store, files: ShardFiles) -> None:
        self._files = files
        self._remote = network_file_system(store.paths.root) is not None
        self._piece = read_ahead_bytes(store.paths.root)
        self._hints = 0
        self._cold = False

    def hint(self, rows: Rows) -> Callable[[], None] | None:
        """What to call, on any thread, to have these rows read; None where the last look at a few found all in memory.

        The call takes long where storage has as much to do as it can queue, and for what the kernel does a page.
        """
        if not len(rows) or not hasattr(os, "posix_fadvise"):
            return None
        with suppress(DecodeonceError):  # of a shard that is amiss: its reader will say so, when it comes to it
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
        except OSError:  # this file system does not tell
            return self._remote
        return False


def rows_ahead(steps: Iterator[Step], row_bytes: int) -> Iterator[Step]:
    """The same steps, each with the rows of later ones: `AHEAD_BYTES` behind it, at least, are asked for by then."""
    waiting: deque[Step] = deque()
    hints: list[Rows] = []
    asked = 0
    for step in steps:
        hints.append(step.rows)
        waiting.append(step)
        asked += len(step.rows)
        while (asked - len(waiting[0].rows)) * row_bytes >= AHEAD_BYTES:
            asked -= len(waiting[0].rows)
            yield replace(waiting.popleft(), hints=hints)
            hints = []
    for step in waiting:
        yield replace(step, hints=hints)
        hints = []


def windows_fit(order: WindowOrder, row_bytes: int) -> bool:
    """Whether half of the available memory holds what blocks_ahead asks for before it is used: two windows.

    Where a cgroup left less, the kernel had dropped blocks again before their rows were copied: for each byte of an
    epoch the disk gave 1.99, and 1.00 where rows_ahead asked.
    """
    nbytes, memory = min(2 * WINDOW_BLOCKS, order.blocks) * order.block_rows * row_bytes, available_memory()
    return memory is None or nbytes <= memory / 2


def blocks_ahead(
    steps: Iterator[Step], order: WindowOrder, partition: Partition, consumed: int, row_bytes: int
) -> Iterator[Step]:
    """The same steps of a window order, with whole blocks, each a window before its rows, one after the other.

    For a rank that takes every row of its order: else it would read what only other ranks need.
    """
    place = int(order.windows(np.array([consumed]))[0]) * WINDOW_BLOCKS
    piece = max(1, AHEAD_BYTES // row_bytes)
    for step in steps:
        consumed += partition.stride
        # The short block, wherever it stands, makes the true place of a row larger by one at most.
        last = max(place, min(order.blocks, consumed // order.block_rows + 1 + WINDOW_BLOCKS))
        rows = order.block_rows_at(np.arange(place, last)) + partition.first_row
        yield replace(step, hints=[rows[start : start + piece] for start in range(0, len(rows), piece)])
        place = last
