"""Map rows to blocks, and blocks to shards and tasks. All of it follows from the number and size of the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from decodeonce.store.manifest import DATA_OFFSET
from decodeonce.store.shard_file import PAGE

LARGEST, SMALLEST, LARGEST_IN_PAGES = 32 << 20, 1 << 20, 64 << 20


def block_rows_for(count: int, row_bytes: int) -> int:
    """Return the rows per block: 1/256 of the store, within 1 MiB and 32 MiB, in whole pages if up to 64 MiB."""
    target = max(SMALLEST, min(LARGEST, count * row_bytes // 256))
    rows = max(1, target // row_bytes)
    unit = PAGE // math.gcd(row_bytes, PAGE)
    in_pages = math.ceil(rows / unit) * unit
    return in_pages if in_pages * row_bytes <= LARGEST_IN_PAGES else rows


def overlap(one: range, other: range) -> bool:
    """Whether two ranges of step 1 have a number in common."""
    return max(one.start, other.start) < min(one.stop, other.stop)


@dataclass(frozen=True)
class Block:
    """Rows [first, last) of the plan, at byte `offset` of shard `shard`."""

    index: int
    first: int
    last: int
    shard: int
    offset: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first


@dataclass(frozen=True)
class Blocks:
    """How `count` rows are divided into blocks and shards; every block is in one shard."""

    count: int
    row_bytes: int
    block_rows: int
    shard_rows: int

    @classmethod
    def of(cls, count: int, row_bytes: int, shard_size: int, block_rows: int | None = None) -> Blocks:
        """Divide rows into blocks; a shard has at least one block. `block_rows` None: use `block_rows_for`."""
        block_rows = block_rows or block_rows_for(count, row_bytes)
        shard_rows = max(1, shard_size // row_bytes // block_rows) * block_rows
        return cls(count, row_bytes, block_rows, shard_rows)

    def __len__(self) -> int:
        return math.ceil(self.count / self.block_rows)

    def __getitem__(self, index: int) -> Block:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        first = index * self.block_rows
        return Block(index, first, min(first + self.block_rows, self.count), *self.place(first))

    @property
    def shards(self) -> int:
        """Number of shards."""
        return math.ceil(self.count / self.shard_rows)

    def place(self, row: int) -> tuple[int, int]:
        """Return the shard of a row and the byte offset in it."""
        shard, inside = divmod(row, self.shard_rows)
        return shard, DATA_OFFSET + inside * self.row_bytes

    def of_task(self, task: int, tasks: int) -> range:
        """Return the contiguous share of blocks of one of `tasks` tasks; sizes of shares differ by at most one."""
        return range(task * len(self) // tasks, (task + 1) * len(self) // tasks)
