"""One epoch: the threads that read its steps into slots and deliver them, and the iterator that hands batches out.

Every hand-over between threads is a SimpleQueue: its `put` may interrupt a `put` or `get` of the same thread, so it is
safe in finalizers, which run wherever the last reference dies or garbage is collected.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from decodeonce.loader.batch import Batch
from decodeonce.loader.delivery import Delivery, Filled, Result, Sent
from decodeonce.loader.meter import Meter, mark, timed
from decodeonce.loader.partition import Step
from decodeonce.loader.readers import Part, Reader

# The user's thread waits with a timeout: a signal that another thread takes, or that comes just before a wait begins,
# wakes nobody, and Ctrl-C would wait for the batch. Python handles signals between two tries.
LOOK_SECONDS = 0.2
# Batches that the copying threads work on at a time: with two, they never wait for one another at a batch's end.
TOGETHER = 2


@dataclass(frozen=True)
class Position:
    """A point in training: rows consumed of an epoch, as its partition counts them."""

    epoch: int
    rows_consumed: int


class Progress:
    """The position that training has reached (`now`), and the one where the next `for` begins (`next`)."""

    def __init__(self) -> None:
        self.now = self.next = Position(0, 0)

    def advance(self, rows: int, *, last: bool) -> None:
        """Count a batch of `rows` rows as handed out; the epoch's last one leads to the start of the next epoch."""
        if self.next == self.now:
            self.next = Position(self.now.epoch + 1, 0)
        self.now = self.next if last else Position(self.now.epoch, self.now.rows_consumed + rows)


class Epoch(Iterator[Batch]):
    """The `steps` batches of an epoch, `stride` rows each. Its threads end with it, also if it is dropped halfway."""

    def __init__(self, filler: Filler, progress: Progress, *, steps: int, stride: int) -> None:
        self._filler, self._progress, self._meter = filler, progress, filler.meter
        self.number, self.left, self._stride = progress.now.epoch, steps, stride
        self.ended = ""  # why it gives no batch any more
        self._process = os.getpid()
        self._since = time.perf_counter()
        # The filler does not refer to the epoch, so an epoch that is dropped dies, and this ends its threads. It also
        # does so at exit: a thread that is inside torch when the interpreter ends can crash the process.
        weakref.finalize(self, filler.stop)
        if not steps:
            progress.advance(0, last=True)

    def end(self, why: str) -> None:
        """End the threads; a request for a further batch raises an error with the reason."""
        self.ended = self.ended or why
        self._filler.stop()

    def __next__(self) -> Batch:
        if not self.left:
            self.end("it is over")
            raise StopIteration
        if self.ended:
            raise RuntimeError(f"this epoch has ended: {self.ended}")
        if os.getpid() != self._process:
            raise RuntimeError("this epoch was begun before a fork, which its threads did not survive; begin it here")
        try:
            sent = self._wait()
            if isinstance(sent, BaseException):  # the filler's, which is ending
                self._filler.stop()
                raise sent
            return self._receive(sent)
        except BaseException as error:
            # This may be Ctrl-C. A batch may be lost by now, so this epoch must not continue; the next one, or a
            # resumed one, will. The threads are not waited for here: they may be waiting for the user.
            self.ended = f"{type(error).__name__}: {error}"
            self._filler.request_stop()
            if isinstance(error, StopIteration):  # from a transform; it would look like the end of the epoch
                raise RuntimeError("transform raised StopIteration") from error
            raise

    def _receive(self, sent: Sent) -> Batch:
        self._filler.allow_one()
        batch = self._filler.delivery.receive(sent)
        self.left -= 1
        self._progress.advance(self._stride, last=not self.left)
        meter, now = self._meter, time.perf_counter()
        meter.batches += 1
        meter.rows += sent.rows
        meter.seconds, self._since = meter.seconds + now - self._since, now
        return batch

    def _wait(self) -> Sent | BaseException:
        self._meter.ready += self._filler.ready.qsize()
        with suppress(Empty):
            return self._filler.ready.get_nowait()
        start = time.perf_counter()
        with mark("wait"):
            while True:
                with suppress(Empty):
                    sent = self._filler.ready.get(timeout=LOOK_SECONDS)
                    break
        self._meter.seconds_waited += time.perf_counter() - start
        self._meter.waits += 1
        return sent


class Filler:
    """A thread that fills slots ahead of the consumer, from a first step to a last.

    `ready` gives each batch, or the exception that ended the thread. At most `prefetch` batches are under way or ready;
    call `allow_one` for each one taken from `ready`.
    """

    def __init__(self, steps: Iterable[Step], reader: Reader, delivery: Delivery, meter: Meter, prefetch: int) -> None:
        self.ready: SimpleQueue[Sent | BaseException] = SimpleQueue()
        self._steps = steps
        self._reader = (
            reader  # the thread deletes it when it ends: mappings must go although the user holds an iterator
        )
        self.delivery, self.meter = delivery, meter
        self._under_way: deque[Filled] = deque()
        self._parts: SimpleQueue[tuple[Part, SimpleQueue[Result]] | None] = SimpleQueue()
        self._allowances: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        for _ in range(prefetch):
            self.allow_one()
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = LoaderThread(self._run, "filler")

    def allow_one(self) -> None:
        """Allow one more batch."""
        self._allowances.put(None)

    def request_stop(self) -> None:
        """Have the thread end with the batch it is at."""
        self._stopped = True
        self.allow_one()

    def stop(self) -> None:
        """End the thread, wait for it, and drop what is ready. May be called again, also after an interrupt."""
        self.request_stop()
        # A finalizer may call this in any thread. A loader's own thread must not wait: the filler may wait for it.
        if isinstance(threading.current_thread(), LoaderThread):
            return
        # Not join() alone: where Ctrl-C interrupts that, a thread counts as ended from then on (CPython before 3.13).
        if self._thread.is_alive():  # it is not in a forked child, where nobody would release the lock
            while not self._running.acquire(timeout=LOOK_SECONDS):
                pass
            self._running.release()
            self._thread.join()
        with suppress(Empty):
            while True:
                self.ready.get_nowait()
        self.ready.put(RuntimeError("this epoch was ended by another thread"))  # one may be waiting in get()

    def _run(self) -> None:
        copying: list[threading.Thread] = []
        try:
            for number in range(self._reader.threads):
                copying.append(LoaderThread(self._copy, f"copy-{number}"))
            self.delivery.enter()
            self._fill()
        except BaseException as error:  # of any kind: the consumer would wait forever for a dead thread
            self.ready.put(error)
        finally:
            self._stopped = True  # so that hints that are still queued are skipped
            for _ in copying:
                self._parts.put(None)
            for thread in copying:
                thread.join()
            while self._under_way:  # nothing writes into their slots any more
                self.delivery.slots.give_back(self._under_way.popleft().slot)
            del self._reader
            self._running.release()

    def _fill(self) -> None:
        for step in self._steps:
            try:
                self._allowances.get_nowait()
            except Empty:  # this may take long: deliver what is under way first
                while self._under_way:
                    self._hand_over()
                self._allowances.get()
            if self._stopped:
                return
            self._begin(step)
            if len(self._under_way) == TOGETHER:
                self._hand_over()
        while self._under_way:
            self._hand_over()

    def _begin(self, step: Step) -> None:
        """Have the copying threads ask storage for a step's hints and read its rows into a slot."""
        for rows in step.hints:
            self.meter.hints += 1
            if hint := self._reader.hint(self.delivery.lacking(rows)):
                self.meter.cold += 1
                # Nobody asks for its result: if it failed, so will the reader.
                self._parts.put((partial(self._unless_stopped, hint), SimpleQueue()))
        rows = self.delivery.lacking(step.rows)
        start = time.perf_counter()
        filled = Filled(step, rows, self.delivery.take())
        self.meter.seconds_sending += time.perf_counter() - start
        self._under_way.append(filled)
        for part in self._reader.parts(rows, filled.slot.pixels[: len(rows)]):
            self._parts.put((part, filled.done))
            filled.parts += 1

    def _hand_over(self) -> None:
        """Deliver the oldest batch under way, when it has been read."""
        filled = self._under_way[0]
        for result in [filled.done.get() for _ in range(filled.parts)]:
            if isinstance(result, BaseException):
                raise result
            self.meter.seconds_reading += result[0]
            self.meter.seconds_reading_cpu += result[1]
        self._under_way.popleft()  # from here on the delivery gives the slot back
        start = time.perf_counter()
        with mark("copy"):
            sent = self.delivery.send(filled, *self._reader.arrays(filled.step.rows))
        self.meter.seconds_transforming += sent.seconds_transforming
        self.meter.seconds_sending += time.perf_counter() - start - sent.seconds_transforming
        self.ready.put(sent)

    def _copy(self) -> None:
        """Do parts, in the order in which they were queued, until there is None."""
        while (item := self._parts.get()) is not None:
            part, done = item
            try:
                with mark("read"):
                    done.put(timed(part))
            except BaseException as error:  # of any kind: the filler waits for each part
                done.put(error)

    def _unless_stopped(self, hint: Part) -> None:
        if not self._stopped:
            hint()


class LoaderThread(threading.Thread):
    """A running thread of some Loader's, which does not keep the interpreter from ending."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=f"decodeonce-{name}", daemon=True)
        self.start()
