"""The threads of an epoch: one that plans and hands over, and those that copy.

Every hand-over between threads is a SimpleQueue: its `put` may interrupt a `put` or `get` of the same thread, so it is
safe in finalizers, which run wherever the last reference dies or garbage is collected.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np

from decodeonce.loader.ahead import ReadAhead
from decodeonce.loader.device import Filled, Sent, Side
from decodeonce.loader.marks import mark
from decodeonce.loader.meter import Meter, Spent
from decodeonce.loader.reading import Part, Reader
from decodeonce.loader.ring import Slot
from decodeonce.loader.steps import Rows, Step
from decodeonce.store import Store

# A wait of the user's thread has a time: a signal that another thread takes, or that comes in the instant before a wait
# begins, wakes nobody, and Ctrl-C would wait for the batch. Python looks at signals between two tries.
LOOK_SECONDS = 0.2


class Source:
    """What a batch is made of: images through a reader, labels and columns by row number."""

    def __init__(self, store: Store, reader: Reader, ahead: ReadAhead, threads: int) -> None:
        self.reader = reader
        self.ahead = ahead
        self.threads = threads
        self._labels = np.asarray(store.labels)
        # Booleans and numbers, of which torch has tensors; columns of text are left to the store.
        self._columns = {name: np.asarray(a) for name, a in store.columns.items() if a.dtype.kind in "biufc"}

    def begin(self, step: Step, read: Rows, slot: Slot | None, team: Team) -> tuple[Filled, Job]:
        """Have the team read the rows `read` of a step into a slot; it may be used when the job has been waited for."""
        parts = [] if slot is None else self.reader.parts(read, slot.pixels[: len(read)], self.threads)
        columns = {name: column[step.rows] for name, column in self._columns.items()}
        return Filled(step, read, slot, self._labels[step.rows], columns), team.start(parts)


class Job:
    """Parts under way in a team."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self.done: SimpleQueue[Spent | BaseException] = SimpleQueue()

    def wait(self) -> Spent:
        """Return when all parts are done, what they cost; raises what the first of them to fail raised."""
        total = Spent()
        results = [self.done.get() for _ in range(self._parts)]
        for result in results:
            if isinstance(result, BaseException):
                raise result
            total.add(result)
        return total


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
            spent = Spent()
            try:
                with mark("read"), spent:
                    part()
            except BaseException as error:  # whatever it is, it is for the thread that waits for the job
                job.done.put(error)
            else:
                job.done.put(spent)


class Filler:
    """A thread that fills slots ahead of the consumer, from a first step to a last.

    `ready` gives each batch, or the exception that ended the thread. `prefetch` batches are under way or ready at most;
    `more` allows one more and is to be called for each that was taken from `ready`.
    """

    # Batches that the team works on at a time: with two, its threads never wait for one another at a batch's end.
    TOGETHER = 2

    def __init__(self, steps: Iterable[Step], source: Source, side: Side, meter: Meter, prefetch: int) -> None:
        self.ready: SimpleQueue[Sent | BaseException] = SimpleQueue()
        self._side, self._meter = side, meter
        self._allowances: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        for _ in range(prefetch):
            self.more()
        self._running = threading.Lock()
        self._running.acquire()
        # Only the thread has the steps and the source: with it go the files, whoever still holds an iterator.
        self._thread = start_thread(partial(self._run, steps, source), "decodeonce-filler")

    def more(self) -> None:
        """Allow one more batch."""
        self._allowances.put(None)

    def tell_to_stop(self) -> None:
        """Have the thread end with the batch it is at."""
        self._stopped = True
        self.more()

    def stop(self) -> None:
        """End the thread and wait for that; what is ready is dropped. May be called again, also after an interrupt."""
        self.tell_to_stop()
        # A finalizer may call this in any thread; one of a loader's own must not wait, for the filler may wait for it.
        if isinstance(threading.current_thread(), LoaderThread):
            return
        # Not join() alone: where Ctrl-C interrupts that, a thread counts as ended from then on (CPython before 3.13).
        if self._thread.is_alive():  # it is not in a child of a fork, where nobody would release the lock
            while not self._running.acquire(timeout=LOOK_SECONDS):
                pass
            self._running.release()
            self._thread.join()
        with suppress(Empty):
            while True:
                self.ready.get_nowait()
        self.ready.put(RuntimeError("this epoch was ended by another thread"))  # one may be waiting in get()

    def _run(self, steps: Iterable[Step], source: Source) -> None:
        try:
            self._side.enter()
            self._fill(steps, source)
        except BaseException as error:  # whatever it is, it is the consumer's: a dead thread would leave him waiting
            self.ready.put(error)
        finally:
            self._running.release()

    def _fill(self, steps: Iterable[Step], source: Source) -> None:
        begun: deque[tuple[Filled, Job]] = deque()
        try:
            with Team(source.threads) as team:
                try:
                    for step in steps:
                        if not self._allowed(begun):
                            return
                        begun.append(self._begin(step, source, team))
                        if len(begun) == self.TOGETHER:
                            self._hand_over(begun)
                    while begun:
                        self._hand_over(begun)
                finally:
                    self._stopped = True  # hints that are still queued are of no use any more
        finally:
            for filled, _ in begun:  # stopped early; the team has ended, so nothing writes into these any more
                self._give_back(filled.slot)

    def _allowed(self, begun: deque[tuple[Filled, Job]]) -> bool:
        """Wait for leave to begin a batch, having handed over what was begun before; False when stopped."""
        try:
            self._allowances.get_nowait()
        except Empty:
            while begun:
                self._hand_over(begun)
            self._allowances.get()
        return not self._stopped

    def _begin(self, step: Step, source: Source, team: Team) -> tuple[Filled, Job]:
        for rows in step.hints:
            self._meter.hints += 1
            if hint := source.ahead.hint(self._lacking(rows)):
                self._meter.cold += 1
                # Nobody waits for it, nor asks what came of it: whoever reads the rows will see.
                team.start([partial(self._unless_stopped, hint)])
        read = self._lacking(step.rows)
        with self._meter.sending:
            slot = self._side.take() if len(read) else None
        try:
            return source.begin(step, read, slot, team)
        except BaseException:
            self._give_back(slot)
            raise

    def _unless_stopped(self, hint: Part) -> None:
        if not self._stopped:
            hint()

    def _give_back(self, slot: Slot | None) -> None:
        if slot is not None:
            self._side.ring.give_back(slot)

    def _lacking(self, rows: Rows) -> Rows:
        return rows if self._side.cache is None else self._side.cache.lacking(rows)

    def _hand_over(self, begun: deque[tuple[Filled, Job]]) -> None:
        filled, job = begun[0]
        self._meter.reading.add(job.wait())
        begun.popleft()  # from here on the side gives the slot back
        with mark("copy"), self._meter.sending:
            sent = self._side.send(filled)
        self.ready.put(sent)


class LoaderThread(threading.Thread):
    """A thread of some Loader's."""


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A running thread that does not keep the interpreter from ending."""
    thread = LoaderThread(target=target, name=name, daemon=True)
    thread.start()
    return thread
