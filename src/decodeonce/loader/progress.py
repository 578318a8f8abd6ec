"""Where training stands: the epoch, the pass through the rows, and what of both has been yielded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from decodeonce.loader.partition import Partition


@dataclass(frozen=True)
class Position:
    """A point in training. A pass yields each row once, in an order of its own.

    An epoch is a pass, except with `steps`: then an epoch can end within a pass, and can contain several.

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
    """The position of training (`now`), and the position where the next `for` loop starts (`next`)."""

    def __init__(self, partition: Partition, steps: int | None) -> None:
        self._partition, self._steps = partition, steps
        self.now = self.next = self.start(0)

    def __len__(self) -> int:
        """The number of steps of a whole epoch."""
        return self._steps or self._partition.steps()

    def start(self, epoch: int) -> Position:
        """The position where an epoch starts."""
        if self._steps is None:
            return Position(epoch, 0, epoch)
        number, step = divmod(epoch * self._steps, self._partition.steps())
        return Position(epoch, step * self._partition.stride, number)

    def left(self, position: Position) -> int:
        """The number of steps from a position to the end of its epoch."""
        if self._steps is None:
            return self._partition.steps(position.rows_consumed)
        return max(0, self._steps - position.epoch_rows // self._partition.stride)

    def passes(self, position: Position) -> Iterator[tuple[int, int]]:
        """The number of each pass from a position on, and the rows that it has consumed."""
        yield position.pass_number, position.rows_consumed
        if self._steps:
            yield from ((number, 0) for number in count(position.pass_number + 1))

    def advance(self) -> None:
        """Count a batch as yielded. The last batch of an epoch moves to the start of the next epoch."""
        now, stride = self.now, self._partition.stride
        if self.next == now:
            self.next = self.start(now.epoch + 1)
        left = self.left(now)
        place = self._in_pass(now.pass_number, now.rows_consumed + (stride if left else 0))
        if left > 1:
            self.now = Position(now.epoch, *place, now.epoch_rows + stride if self._steps else 0)
            return
        if self._steps and self.next.epoch == now.epoch + 1:  # `start` differs if the batch size was another before
            self.next = Position(self.next.epoch, *place)
        self.now = self.next

    def state(self) -> dict[str, int]:
        """The position of training, for `restore()`."""
        now = self.now
        state = {"epoch": now.epoch, "rows_consumed": now.rows_consumed}
        return {**state, "pass": now.pass_number, "epoch_rows": now.epoch_rows} if self._steps else state

    def restore(self, state: Mapping[str, int]) -> None:
        """Move to the position of a Loader that can have another batch size."""
        now = Position(state["epoch"], state["rows_consumed"], state.get("pass", state["epoch"]))
        if self._steps:
            now = Position(now.epoch, *self._in_pass(now.pass_number, now.rows_consumed), state["epoch_rows"])
        self.now = self.next = now

    def _in_pass(self, number: int, consumed: int) -> tuple[int, int]:
        """The consumed rows and the number of a pass, or of the next pass if fewer rows than a batch are left."""
        return (consumed, number) if self._partition.steps(consumed) else (0, number + 1)
