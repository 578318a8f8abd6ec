"""Reading ahead: the kernel hears what coming steps need, so that storage has many reads to do at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from decodeonce.errors import StoreError
from decodeonce.host import network_file_system
from decodeonce.loader.order import WINDOW_BLOCKS, WindowOrder
from decodeonce.loader.partition import Partition
from decodeonce.loader.shards import ShardFiles
from decodeonce.loader.steps import Rows, Step
from decodeonce.store import Store

# Storage that gives 10 GB/s, and takes 6 ms to, is kept busy by this much.
AHEAD_BYTES = 64 << 20
# Asking for rows that are in memory took 2 us each, a tenth of copying them; a look at one takes 1 us.
LOOKS = 16

Ask = Callable[[Rows], None]


class ReadAhead:
    """Asks the kernel for rows that are not in memory; belongs to one thread.

    A thread that copies has one read under way, which is too little for most storage: docs/benchmarks.md has figures.
    """

    def __init__(self, store: Store, files: ShardFiles) -> None:
        self._files = files
        self._remote = network_file_system(store.paths.root) is not None

    def ask(self, rows: Rows) -> None:
        """Have these rows read, unless a look at a few of them finds all in memory."""
        if not len(rows) or not hasattr(os, "posix_fadvise"):
            return
        with suppress(StoreError):  # of a shard that is amiss: its reader will say so, when it comes to it
            if self._any_cold(rows[:: -(-len(rows) // LOOKS)]):
                self._files.open(rows)
                for span in self._files.spans(rows):
                    nbytes = (span.last - span.first) * self._files.row_bytes
                    os.posix_fadvise(self._files.fd(span.shard), span.offset, nbytes, os.POSIX_FADV_WILLNEED)

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


def rows_ahead(steps: Iterator[Step], ask: Ask, row_bytes: int) -> Iterator[Step]:
    """The same steps, each given when `AHEAD_BYTES` of rows behind it, at least, have been asked for."""
    waiting: deque[Step] = deque()
    asked = 0
    for step in steps:
        ask(step.rows)
        waiting.append(step)
        asked += len(step.rows)
        while (asked - len(waiting[0].rows)) * row_bytes >= AHEAD_BYTES:
            asked -= len(waiting[0].rows)
            yield waiting.popleft()
    yield from waiting


def blocks_ahead(
    steps: Iterator[Step], ask: Ask, order: WindowOrder, partition: Partition, consumed: int
) -> Iterator[Step]:
    """The same steps of a window order, whole blocks asked for a window ahead of them, one after the other.

    For a rank that takes every row of its order: else it would read what only other ranks need.
    """
    place = consumed // order.block_rows // WINDOW_BLOCKS * WINDOW_BLOCKS
    for step in steps:
        consumed += partition.stride
        # The short block, wherever it stands, makes the true place of a row larger by one at most.
        while place < min(order.blocks, consumed // order.block_rows + 1 + WINDOW_BLOCKS):
            ask(order.block(place) + partition.first_row)
            place += 1
        yield step
