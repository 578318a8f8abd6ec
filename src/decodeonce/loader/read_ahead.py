"""Reading ahead: which rows to ask storage for when a step begins, so that it has many reads to do at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import tee

import numpy as np

from decodeonce.host import available_memory
from decodeonce.loader.order import WINDOW_BLOCKS, WindowOrder
from decodeonce.loader.partition import Partition, Step

# Enough to keep storage of 10 GB/s and 6 ms latency busy.
AHEAD_BYTES = 64 << 20


def rows_ahead(steps: Iterator[Step], row_bytes: int) -> Iterator[Step]:
    """Yield the steps with hints: when a step begins, at least `AHEAD_BYTES` of the next ones have been asked for."""
    steps, later = tee(steps)
    ahead = 0  # rows that were asked for, of this step and later ones
    for step in steps:
        hints = []
        while (ahead - len(step.rows)) * row_bytes < AHEAD_BYTES and (asked := next(later, None)):
            hints.append(asked.rows)
            ahead += len(asked.rows)
        yield replace(step, hints=hints)
        ahead -= len(step.rows)


def windows_fit(order: WindowOrder, row_bytes: int) -> bool:
    """Whether half of the available memory holds two windows, which blocks_ahead asks for before they are used.

    If a cgroup left less, the kernel dropped blocks before their rows were copied: the disk read 1.99 bytes for each
    byte of an epoch, and 1.00 with rows_ahead.
    """
    nbytes, memory = min(2 * WINDOW_BLOCKS, order.blocks) * order.block_rows * row_bytes, available_memory()
    return memory is None or nbytes <= memory / 2


def blocks_ahead(
    steps: Iterator[Step], order: WindowOrder, partition: Partition, consumed: int, row_bytes: int
) -> Iterator[Step]:
    """Yield the steps of a window order with whole blocks as hints, one after the other, each a window before its rows.

    Only for a rank that takes every row of its order: any other rank would read what only other ranks need.
    """
    place = int(order.windows(np.array([consumed]))[0]) * WINDOW_BLOCKS
    piece = max(1, AHEAD_BYTES // row_bytes)
    for step in steps:
        consumed += partition.stride
        # The short block, wherever it is, makes the true place of a row larger by one at most.
        last = max(place, min(order.blocks, consumed // order.block_rows + 1 + WINDOW_BLOCKS))
        rows = partition.at(order.block_rows_at(np.arange(place, last)))
        yield replace(step, hints=[rows[start : start + piece] for start in range(0, len(rows), piece)])
        place = last
