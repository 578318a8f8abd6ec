"""Choose which rows to read ahead when a step begins, so that storage always has many reads queued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import tee

import numpy as np

from decodeonce.host import available_memory
from decodeonce.loader.order import WINDOW_BLOCKS, WindowOrder
from decodeonce.loader.partition import Partition, Step

# Enough to keep storage with 10 GB/s and 6 ms latency busy.
AHEAD_BYTES = 64 << 20


def rows_ahead(steps: Iterator[Step], row_bytes: int) -> Iterator[Step]:
    """Yield the steps with hints, so that at least `AHEAD_BYTES` of later steps were requested when a step begins."""
    steps, later = tee(steps)
    ahead = 0  # requested rows of this step and later ones
    for step in steps:
        hints = []
        while (ahead - len(step.rows)) * row_bytes < AHEAD_BYTES and (requested := next(later, None)):
            hints.append(requested.rows)
            ahead += len(requested.rows)
        yield replace(step, hints=hints)
        ahead -= len(step.rows)


def windows_fit(order: WindowOrder, row_bytes: int) -> bool:
    """Whether two windows fit into half of the available memory; blocks_ahead needs this much.

    With less memory in a cgroup, the kernel dropped blocks before their rows were copied: the disk read 1.99 bytes per
    byte of an epoch, and 1.00 with rows_ahead.
    """
    nbytes, memory = min(2 * WINDOW_BLOCKS, order.blocks) * order.block_rows * row_bytes, available_memory()
    return memory is None or nbytes <= memory / 2


def blocks_ahead(
    steps: Iterator[Step], order: WindowOrder, partition: Partition, consumed: int, row_bytes: int
) -> Iterator[Step]:
    """Yield the steps of a window order, with whole blocks as hints. Each block is requested one window ahead.

    Only for a rank that takes every row of its order. Otherwise a rank would also read rows that only others need.
    """
    place = int(order.windows(np.array([consumed]))[0]) * WINDOW_BLOCKS
    piece = max(1, AHEAD_BYTES // row_bytes)
    for step in steps:
        consumed += partition.stride
        # Because of the short block, a row's block can be one place later than this computes.
        last = max(place, min(order.blocks, consumed // order.block_rows + 1 + WINDOW_BLOCKS))
        rows = partition.at(order.block_rows_at(np.arange(place, last)))
        yield replace(step, hints=[rows[start : start + piece] for start in range(0, len(rows), piece)])
        place = last
