"""The threads of an epoch: one that plans and hands over, and those that copy.

Every hand-over between threads is a SimpleQueue: its `put` may interrupt a `put` or `get` of the same thread, so it is
safe in finalizers, which run wherever the last reference dies or garbage is collected.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from decodeonce.loader.device import Filled, Sent, Side
from decodeonce.loader.order import Order
from decodeonce.loader.partition import Partition
from decodeonce.loader.reading import Part, Reader
from decodeonce.loader.ring import Slot
from decodeonce.store import Store

# Rows that are looked up in the order together. For 256 at a time that took 57 us, for 4096 it takes 10 us per 256; a
# batch of 50 MB takes 2,700 us to copy, on cores that have better to do.
GROUP_ROWS = 4096


@dataclass(frozen=True)
class Step:
    """The rows of one batch, ascending in its valid part and in its padding."""

    rows: NDArray[np.int64]
    valid: int
    epoch: int


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


class Source:
    """What a batch is made of: images through a reader, labels and columns by row number."""

    def __init__(self, store: Store, reader: Reader, threads: int) -> None:
        self.reader = reader
        self.threads = threads
        self._labels = np.asarray(store.labels)
        # Booleans and numbers, of which torch has tensors; columns of text are left to the store.
        self._columns = {name: np.asarray(a) for name, a in store.columns.items() if a.dtype.kind in "biufc"}

    def begin(self, step: Step, slot: Slot, team: Team) -> tuple[Filled, Job]:
        """Have the team fill the slot; the batch may be used when the job has been waited for."""
        job = team.start(self.reader.parts(step.rows, slot.pixels[: len(step.rows)], self.threads))
        columns = {name: column[step.rows] for name, column in self._columns.items()}
        return Filled(slot, step.valid, step.epoch, step.rows, self._labels[step.rows], columns), job


class Job:
    """Parts under way in a team."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()

    def wait(self) -> None:
        """Return when all parts are done; raises what the first of them to fail raised."""
        results = [self.done.get() for _ in range(self._parts)]
        for error in filter(None, results):
            raise error


class Team:
    """Threads that take parts in the order in which they were started: a batch begins while the last one ends."""

    def __init__(self, threads: int) -> None:
        self._parts: SimpleQueue[tuple[Part, Job] | None] = SimpleQueue()
        self._threads = [start_thread(self._work, f"decodeonce-copy-{number}") for number in range(threads)]

    def start(self, parts: list[Part]) -> Job:
        """Have these parts done."""
        job = Job(len(parts))
        for part in parts:
            self._parts.put((part, job))
        return job

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *exc: object) -> None:
        """Return when every part that was started is done and the threads have ended."""
        for _ in self._threads:
            self._parts.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (item := self._parts.get()) is not None:
            part, job = item
            try:
                part()
            except BaseException as error:  # whatever it is, it is for the thread that waits for the job
                job.done.put(error)
            else:
                job.done.put(None)


class Filler:
    """A thread that fills slots ahead of the consumer, from a first step to a last.

    `ready` gives each batch, or the exception that ended the thread. `prefetch` batches are under way or ready at most;
    `more` allows one more and is to be called for each that was taken from `ready`.
    """

    # Batches that the team works on at a time: with two, its threads never wait for one another at a batch's end.
    TOGETHER = 2

    def __init__(self, steps: Iterable[Step], source: Source, side: Side, prefetch: int) -> None:
        self.ready: SimpleQueue[Sent | BaseException] = SimpleQueue()
        self._steps, self._source, self._side = steps, source, side
        self._allowances: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        for _ in range(prefetch):
            self.more()
        self._thread = start_thread(self._run, "decodeonce-filler")

    def more(self) -> None:
        """Allow one more batch."""
        self._allowances.put(None)

    def stop(self) -> None:
        """End the thread and wait for that; what is ready is dropped."""
        self._stopped = True
        self.more()
        # A finalizer may call this in any thread, this one included. Waiting is safe even there: the thread takes no
        # lock of ours, and is never longer than a batch from the next look at `_stopped`.
        if threading.current_thread() is not self._thread:
            self._thread.join()
        ready, self.ready = self.ready, SimpleQueue()
        ready.put(RuntimeError("this epoch was ended by another thread"))  # one may be waiting in get()

    def _run(self) -> None:
        try:
            self._side.enter()
            self._fill()
        except BaseException as error:  # whatever it is, it is the consumer's: a dead thread would leave him waiting
            self.ready.put(error)

    def _fill(self) -> None:
        begun: deque[tuple[Filled, Job]] = deque()
        try:
            with Team(self._source.threads) as team:
                for step in self._steps:
                    if not self._allowed(begun):
                        return
                    begun.append(self._source.begin(step, self._side.take(), team))
                    if len(begun) == self.TOGETHER:
                        self._hand_over(begun)
                while begun:
                    self._hand_over(begun)
        finally:
            for filled, _ in begun:  # stopped early; the team has ended, so nothing writes into these any more
                self._side.ring.give_back(filled.slot)

    def _allowed(self, begun: deque[tuple[Filled, Job]]) -> bool:
        """Wait for leave to begin a batch, having handed over what was begun before; False when stopped."""
        try:
            self._allowances.get_nowait()
        except Empty:
            while begun:
                self._hand_over(begun)
            self._allowances.get()
        return not self._stopped

    def _hand_over(self, begun: deque[tuple[Filled, Job]]) -> None:
        filled, job = begun[0]
        job.wait()
        begun.popleft()  # from here on the side gives the slot back
        self.ready.put(self._side.send(filled))


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A running thread that does not keep the interpreter from ending."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
