"""The steps of a rank: which rows of an epoch it takes in each, which ones to read ahead, and which step is next.

All ranks have the same number of steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from decodeonce.host import available_memory
from decodeonce.loader.order import WINDOW_BLOCKS, AliasTable, Order, Rows, Shuffle, WindowOrder
from decodeonce.store import Store, part_rows

PartitionKind = Literal["global", "range"]
Tail = Literal["drop", "pad", "keep"]

# Rows that are looked up in the order at once. Per 256 rows this took 57 us in groups of 256, and 10 us in groups of
# 4096. For comparison, copying a batch of 50 MB takes 2,700 us, on the same cores.
GROUP_ROWS = 4096
# Storage must always have many reads queued. This is enough to keep storage with 10 GB/s and 6 ms latency busy.
AHEAD_BYTES = 64 << 20


@dataclass(frozen=True)
class StepRows:
    """The rows of one batch: the valid ones in ascending order, then the padding in ascending order.

    hints: rows of this and later steps to read ahead when this step begins.
    positions: a number of its own for each row, if rows can repeat within an epoch.
    """

    rows: Rows
    valid: int
    epoch: int
    hints: Sequence[Rows] = ()
    positions: Rows | None = None


Steps = Iterable[StepRows]


@dataclass(frozen=True)
class Partition:
    """The rows that one rank takes in an epoch.

    The order of an epoch is over `rows` of the store, in ascending order: a range, or those of a subset. Every step
    consumes `stride` rows of the order and divides them into `slices` slices. This rank takes slice number `slice_`.
    With "global", all `ranks` slice one order over the whole store or subset. With "range", each rank has an order over
    its own range, in a single slice, after the `before` rows of lower ranks. `fewest` and `most` are the lengths of
    the shortest and the longest range, and `total` is that of all. `words` are added to the key of the order; without
    them, ranges of equal size would get the same order.
    """

    rows: range | Rows
    fewest: int
    most: int
    batch_size: int
    slice_: int
    slices: int
    ranks: int
    tail: Tail
    total: int
    before: int = 0
    words: tuple[int, ...] = ()

    def at(self, places: Rows) -> Rows:
        """The elements of `rows` at `places`."""
        return places + self.rows.start if isinstance(self.rows, range) else self.rows[places]

    @property
    def stride(self) -> int:
        """Rows of the order that each step consumes."""
        return self.batch_size * self.slices

    def steps(self, consumed: int = 0) -> int:
        """Number of steps left after `consumed` rows; the same on every rank."""
        if self.tail == "drop":
            return max(0, self.fewest - consumed) // self.stride
        return -(-(self.most - consumed) // self.stride)

    @property
    def remainder(self) -> int:
        """Rows that count in the last global batch of a pass. 0: it is complete, or each rank has its own range."""
        return len(self.rows) % self.stride if self.tail != "drop" and self.slices == self.ranks else 0

    def share(self, consumed: int) -> tuple[Rows, int]:
        """This rank's positions in the step after `consumed` rows, and how many are valid; the rest is padding."""
        if len(self.rows) - consumed < self.stride:
            return self._last_share(consumed)
        first = consumed + self.slice_ * self.batch_size
        return np.arange(first, first + self.batch_size), self.batch_size

    def _last_share(self, consumed: int) -> tuple[Rows, int]:
        """The same for a step with fewer rows than a global batch: filled up with `tail` "pad", otherwise split."""
        count = len(self.rows)
        left = self.stride if self.tail == "pad" else count - consumed
        first, last = (consumed + number * left // self.slices for number in (self.slice_, self.slice_ + 1))
        if first == last:
            return np.zeros(1, np.int64), 0  # one row of padding, because a batch must not be empty
        valid = max(0, min(last, count) - first)
        return np.arange(first, last) % count, valid  # padding: the first rows of the epoch


def find_rows(rows: ArrayLike, count: int) -> Rows:
    """Convert row numbers or a mask to ascending row numbers. ValueError if one is wrong or given twice."""
    given = np.asarray(rows)
    if given.dtype == np.bool_ and given.shape == (count,):
        return np.flatnonzero(given)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"rows has shape {given.shape} of {given.dtype}, expected row numbers or {count} booleans")
    given = np.sort(given)
    if given.size and not 0 <= given[0] <= given[-1] < count:
        wrong = given[0] if given[0] < 0 else given[-1]
        raise ValueError(f"rows contains {wrong}, expected numbers from 0 to {count - 1}")
    if (twice := given[1:][given[1:] == given[:-1]]).size:
        raise ValueError(f"rows contains row {twice[0]} more than once, expected each row once")
    return given.astype(np.int64, copy=False)


def make_table(
    weights: ArrayLike, store: Store, rows: range | Rows, shuffle: Shuffle, kind: PartitionKind
) -> AliasTable:
    """Create the table of the parameter `weights` of a Loader, or raise ValueError if they are not valid."""
    if (shuffle, kind) != ("full", "global"):
        # Ranks have batches of the same size. So a range with a larger sum would get too few draws.
        got = f"shuffle={shuffle!r}, partition={kind!r}"
        raise ValueError(f'weights= draws from all rows: it needs shuffle="full", partition="global", got {got}')
    own = slice(None) if isinstance(rows, range) else rows
    if isinstance(weights, str) and weights == "balanced":
        labels = store.labels[own]
        sizes = np.bincount(labels)
        if np.count_nonzero(sizes) == 1:
            name = store.classes[labels[0]].name
            raise ValueError(f'weights="balanced" needs rows of several classes, but all are of class {name!r}')
        return AliasTable(1 / sizes[labels])
    given = np.asarray(weights)
    if given.dtype.kind not in "biuf" or given.shape != (len(store),):
        expected = f'expected {len(store)} numbers, one for each row of the store, or "balanced"'
        raise ValueError(f"weights has shape {given.shape} of {given.dtype}, {expected}")
    given = given.astype(np.float64)
    if (wrong := np.flatnonzero(~(np.isfinite(given) & (given >= 0)))).size:
        raise ValueError(f"weights[{wrong[0]}] is {given[wrong[0]]}, expected a finite number of 0 or more")
    if not given[own].any():
        raise ValueError("weights has only zeros for the rows to load, expected one number above 0")
    return AliasTable(given[own])


def make_partition(
    kind: PartitionKind, rows: range | Rows, batch_size: int, rank: int, world_size: int, tail: Tail
) -> Partition:
    """Create the partition of one rank, or raise ValueError if a rank would have no row or no step."""
    if (count := len(rows)) == 0:
        raise ValueError("there are no rows to load; expected rows= to select at least one")
    partition = Partition(rows, count, count, batch_size, rank, world_size, world_size, tail, total=count)
    if kind == "range":
        partition = _own_range(partition)
    if not partition.steps():
        got = f"a rank gets only {count // world_size} rows ({count} rows in all, world_size {world_size})"
        advice = 'and tail="drop" skips incomplete batches; use a smaller batch_size, or tail="pad" or "keep"'
        raise ValueError(f"batch_size is {batch_size}, but {got}, {advice}")
    return partition


def _own_range(whole: Partition) -> Partition:
    """The partition of a rank that has its own range of the rows of `whole`."""
    count, ranks = len(whole.rows), whole.ranks
    if count < ranks:
        raise ValueError(f'{count} rows are too few for {ranks} ranks; use fewer ranks, or partition="global"')
    own = part_rows(count, whole.slice_, ranks)
    rows, words = whole.rows[own.start : own.stop], (ranks, whole.slice_)
    fewest, most = count // ranks, -(-count // ranks)
    return replace(whole, rows=rows, fewest=fewest, most=most, slice_=0, slices=1, before=own.start, words=words)


def plan_steps(order: Order, partition: Partition, consumed: int, epoch: int, first: int | None = None) -> Steps:
    """Yield the steps of a pass after its first `consumed` rows.

    If `first` is given, it is the number of the first row of the pass in `StepRows.positions`.
    """
    steps = range(partition.steps(consumed))
    group = max(1, GROUP_ROWS // partition.batch_size)
    for start in steps[::group]:
        shares = [partition.share(consumed + step * partition.stride) for step in steps[start : start + group]]
        rows = partition.at(order.at(np.concatenate([positions for positions, _ in shares])))
        for positions, valid in shares:
            own, rows = np.split(rows, [len(positions)])
            # In ascending order, reads go forward and consecutive rows are read together. Padding comes last.
            if first is None:
                own[:valid].sort()  # a fifth of the time of lexsort, which matters for small rows
                own[valid:].sort()
                yield StepRows(own, valid, epoch)
            else:
                places = np.lexsort((own, np.arange(len(own)) >= valid))
                yield StepRows(own[places], valid, epoch, positions=first + positions[places])


def add_hints(steps: Steps, order: Order, partition: Partition, consumed: int, row_bytes: int) -> Steps:
    """Yield the steps with hints: whole blocks if the rank takes every row of a window order, otherwise later rows."""
    if isinstance(order, WindowOrder) and partition.slices == 1 and windows_fit(order, row_bytes):
        return blocks_ahead(steps, order, partition, consumed, row_bytes)
    return rows_ahead(steps, row_bytes)


def rows_ahead(steps: Steps, row_bytes: int) -> Steps:
    """Yield the steps with hints, so that at least `AHEAD_BYTES` of later steps were requested when a step begins."""
    steps, later = itertools.tee(steps)
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


def blocks_ahead(steps: Steps, order: WindowOrder, partition: Partition, consumed: int, row_bytes: int) -> Steps:
    """Yield the steps of a window order, with whole blocks as hints. Each block is requested one window ahead.

    A rank that takes only some rows of its order would also read rows that only others need.
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


# Where training stands: the epoch, the pass through the rows, and what of both has been yielded.


@dataclass(frozen=True)
class Position:
    """A point in training. A pass yields each row once, in an order of its own.

    epoch: number of the epoch.
    rows_consumed: rows that the pass has consumed, as the partition counts them.
    pass_number: number of the pass.
    epoch_rows: rows that the epoch has consumed; counted only with `steps`.
    """

    epoch: int
    rows_consumed: int
    pass_number: int
    epoch_rows: int = 0


class Progress:
    """The position of training (`now`), and the position where the next `for` loop starts (`next`).

    Each epoch is a pass.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.now = self.next = self.start(0)

    def __len__(self) -> int:
        """The number of steps of a whole epoch."""
        return self._partition.steps()

    @property
    def remainder(self) -> int:
        """Rows that count in the last global batch of an epoch; 0 if all do."""
        return self._partition.remainder

    def start(self, epoch: int) -> Position:
        """The position where an epoch starts."""
        return Position(epoch, 0, epoch)

    def left(self, position: Position) -> int:
        """The number of steps from a position to the end of its epoch."""
        return self._partition.steps(position.rows_consumed)

    def passes(self, position: Position) -> Iterable[tuple[int, int, int | None]]:
        """The number of each pass from a position on, the rows that it has consumed, and the number of its first row.

        This number is None if an epoch is one pass: then only draws by weight number its rows, from 0.
        """
        return [(position.pass_number, position.rows_consumed, None)]

    def advance(self) -> None:
        """Count a batch as yielded. The last batch of an epoch moves to the start of the next epoch."""
        if self.next == self.now:
            self.next = self.start(self.now.epoch + 1)
        self.now = self._after(self.now) if self.left(self.now) > 1 else self._after_last(self.now)

    def _after(self, position: Position) -> Position:
        """The position after one more batch of the same epoch."""
        return Position(position.epoch, position.rows_consumed + self._partition.stride, position.pass_number)

    def _after_last(self, position: Position) -> Position:
        """The position after the last batch of an epoch, where the next `for` loop starts."""
        return self.next

    def state(self) -> dict[str, int]:
        """The position of training, for `restore()`."""
        return {"epoch": self.now.epoch, "rows_consumed": self.now.rows_consumed}

    def restore(self, state: Mapping[str, int]) -> None:
        """Move to the position of a Loader that can have another batch size."""
        self.now = self.next = Position(state["epoch"], state["rows_consumed"], state["epoch"])


class StepProgress(Progress):
    """Progress with a fixed number of steps per epoch: an epoch can end within a pass, and can contain several."""

    remainder = 0

    def __init__(self, partition: Partition, steps: int) -> None:
        self._steps = steps
        super().__init__(partition)

    def __len__(self) -> int:
        return self._steps

    def start(self, epoch: int) -> Position:
        number, step = divmod(epoch * self._steps, self._partition.steps())
        return Position(epoch, step * self._partition.stride, number)

    def left(self, position: Position) -> int:
        return max(0, self._steps - position.epoch_rows // self._partition.stride)

    def passes(self, position: Position) -> Iterator[tuple[int, int, int | None]]:
        consumed = position.rows_consumed
        for number in itertools.count(position.pass_number):
            yield number, consumed, number * self._partition.total + self._partition.before
            consumed = 0

    def _after_last(self, position: Position) -> Position:
        if self.next.epoch == position.epoch + 1:  # `start` differs if the batch size was another before
            reached = self._after(position) if self.left(position) else position
            self.next = replace(reached, epoch=self.next.epoch, epoch_rows=0)
        return self.next

    def _after(self, position: Position) -> Position:
        epoch_rows = position.epoch_rows + self._partition.stride
        return self._in_pass(replace(super()._after(position), epoch_rows=epoch_rows))

    def state(self) -> dict[str, int]:
        return {**super().state(), "pass": self.now.pass_number, "epoch_rows": self.now.epoch_rows}

    def restore(self, state: Mapping[str, int]) -> None:
        found = Position(state["epoch"], state["rows_consumed"], state["pass"], state["epoch_rows"])
        self.now = self.next = self._in_pass(found)

    def _in_pass(self, position: Position) -> Position:
        """The same position, or the start of the next pass if fewer rows than a batch are left."""
        if self._partition.steps(position.rows_consumed):
            return position
        return replace(position, rows_consumed=0, pass_number=position.pass_number + 1)
