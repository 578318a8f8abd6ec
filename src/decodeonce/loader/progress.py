"""Where training stands: the epoch, the pass through the rows, and what of both has been yielded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from decodeonce.loader.partition import Partition


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

    def passes(self, position: Position) -> Iterable[tuple[int, int]]:
        """The number of each pass from a position on, and the rows that it has consumed."""
        return [(position.pass_number, position.rows_consumed)]

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

    def passes(self, position: Position) -> Iterator[tuple[int, int]]:
        yield position.pass_number, position.rows_consumed
        yield from ((number, 0) for number in count(position.pass_number + 1))

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
