"""Which positions of an epoch's order a rank takes at each step; every rank has the same number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decodeonce.store import part_rows

PARTITIONS = ("global", "range")
TAILS = ("drop", "pad", "keep")


@dataclass(frozen=True)
class Take:
    """Positions [first, last) of the order for one batch; the first `valid` of them count.

    Positions past the order's end are padding and go on from its start.
    """

    first: int
    last: int
    valid: int

    def positions(self, count: int) -> NDArray[np.int64]:
        """The positions in an order of `count` rows."""
        positions = np.arange(self.first, self.last, dtype=np.int64)
        return positions % count if self.last > count else positions


PADDING_ROW = Take(0, 1, 0)


class Partition(Protocol):
    """How the ranks share an epoch.

    `count` is the number of rows in this rank's order, which begins at row `first_row` of the store. Progress is
    measured in consumed rows, of which every step adds `stride`: of all ranks together in a global partition, of this
    rank in a range partition, where it is the same number on each.
    """

    @property
    def batch_size(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def first_row(self) -> int: ...

    @property
    def stride(self) -> int: ...

    def steps(self, consumed: int = 0) -> int:
        """Steps that are left after `consumed` rows, the same number on every rank."""

    def take(self, consumed: int) -> Take:
        """What this rank takes in the step after `consumed` rows."""


@dataclass(frozen=True)
class GlobalPartition:
    """Each rank takes its slice, in rank order, of every global batch of one order over all rows."""

    count: int
    batch_size: int
    rank: int
    world_size: int
    tail: str
    first_row: int = 0

    @property
    def stride(self) -> int:
        """Rows of a global batch."""
        return self.batch_size * self.world_size

    def steps(self, consumed: int = 0) -> int:
        return _steps(self.count - consumed, self.count - consumed, self.stride, self.tail)

    def take(self, consumed: int) -> Take:
        left = self.count - consumed
        if left >= self.stride or self.tail == "pad":
            first = consumed + self.rank * self.batch_size
            last = first + self.batch_size
        else:
            first, last = (consumed + share * left // self.world_size for share in (self.rank, self.rank + 1))
        return _take(first, last, self.count)


@dataclass(frozen=True)
class RangePartition:
    """Rank r takes rows [r*total//world_size, (r+1)*total//world_size) of the store and no other (see part_rows)."""

    total: int
    batch_size: int
    rank: int
    world_size: int
    tail: str

    @property
    def first_row(self) -> int:
        """Where this rank's share begins in the store."""
        return part_rows(self.total, self.rank, self.world_size).start

    @property
    def count(self) -> int:
        """Rows of this rank's share; shares differ by at most one."""
        return len(part_rows(self.total, self.rank, self.world_size))

    @property
    def stride(self) -> int:
        """Rows that a rank takes in a step."""
        return self.batch_size

    def steps(self, consumed: int = 0) -> int:
        smallest, largest = self.total // self.world_size, -(-self.total // self.world_size)
        return _steps(smallest - consumed, largest - consumed, self.stride, self.tail)

    def take(self, consumed: int) -> Take:
        last = consumed + self.batch_size
        return _take(consumed, min(last, self.count) if self.tail == "keep" else last, self.count)


def make_partition(kind: str, count: int, batch_size: int, rank: int, world_size: int, tail: str) -> Partition:
    """One of `PARTITIONS` of `count` rows, checked.

    Raises ValueError where there is no row for every rank, or tail="drop" leaves no step.
    """
    if count == 0:
        raise ValueError("the store has no rows")
    if kind == "range" and count < world_size:
        raise ValueError(f'{count} rows among {world_size} ranks leave a rank without any; use partition="global"')
    partition: Partition
    if kind == "range":
        partition = RangePartition(count, batch_size, rank, world_size, tail)
    else:
        partition = GlobalPartition(count, batch_size, rank, world_size, tail)
    if not partition.steps():
        raise ValueError(
            f"batch_size {batch_size} is more than a rank's share, {count // world_size} ({count} rows among "
            f'{world_size} ranks), and tail="drop" leaves no step; take a smaller batch, or tail="pad" or "keep"'
        )
    return partition


def _steps(smallest: int, largest: int, stride: int, tail: str) -> int:
    """Steps that cover `largest` rows, or with tail="drop" that `smallest` rows fill."""
    return max(0, smallest) // stride if tail == "drop" else -(-largest // stride)


def _take(first: int, last: int, count: int) -> Take:
    valid = max(0, min(last, count) - first)
    return Take(first, last, valid) if first < last else PADDING_ROW
