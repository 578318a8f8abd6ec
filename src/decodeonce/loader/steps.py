"""The steps of an epoch: which rows each batch is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decodeonce.loader.order import Order
from decodeonce.loader.partition import Partition

Rows = NDArray[np.int64]

# Rows that are looked up in the order together. For 256 at a time that took 57 us, for 4096 it takes 10 us per 256; a
# batch of 50 MB takes 2,700 us to copy, on cores that have better to do.
GROUP_ROWS = 4096


@dataclass(frozen=True)
class Step:
    """The rows of one batch, ascending in its valid part and in its padding.

    hints: rows of this and of later steps that storage is to be asked for when this step begins.
    """

    rows: Rows
    valid: int
    epoch: int
    hints: Sequence[Rows] = ()


def plan_steps(order: Order, partition: Partition, consumed: int, epoch: int) -> Iterator[Step]:
    """The steps that are left of an epoch, whose order is given, after `consumed` rows."""
    steps = range(partition.steps(consumed))
    group = max(1, GROUP_ROWS // partition.batch_size)
    for start in steps[::group]:
        takes = [partition.take(consumed + step * partition.stride) for step in steps[start : start + group]]
        rows = order.rows(np.concatenate([take.positions(partition.count) for take in takes])) + partition.first_row
        for take in takes:
            own, rows = np.split(rows, [take.last - take.first])
            own[: take.valid].sort()  # so that reads run forward and neighbours are read at once
            if take.valid < len(own):
                own[take.valid :].sort()
            yield Step(own, take.valid, epoch)
