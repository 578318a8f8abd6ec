"""One epoch: the threads that read its steps into slots and deliver them, and the iterator that yields batches.

Threads exchange everything through SimpleQueues. Their `put` can interrupt a `put` or `get` of the same thread, so it
is safe in finalizers, which run in any thread that drops the last reference or collects garbage.

Python handles Ctrl-C between any two steps of Python code in the main thread. If that is code of a finalizer, Python
prints KeyboardInterrupt and continues. So the main thread runs no Python code when an epoch is dropped, and it starts
a thread and records this in a single call of C functions (`Filler.start`).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from decodeonce.loader import accelerate
from decodeonce.loader.buffers import refuse_to_copy
from decodeonce.loader.delivery import Batch, Delivery, PendingBatch, Result, mark
from decodeonce.loader.meter import Meter
from decodeonce.loader.partition import Progress, StepRows, Steps
from decodeonce.loader.readers import Call, Reader

# The user's thread waits with a timeout. A signal that another thread receives, or that arrives just before a wait
# begins, does not end the wait, so Ctrl-C would have to wait for the batch. Python handles signals between two waits.
POLL_SECONDS = 0.2
# Batches that the copying threads work on at a time. With two, they do not wait for each other at the end of a batch.
BATCHES_IN_PROGRESS = 2


class Epoch(Iterator[Batch]):
    """Iterate over the batches of the epoch at the current position.

    Its threads start when the filler is started. They end when the epoch is over or is garbage-collected.
    """

    def __init__(self, filler: Filler, progress: Progress) -> None:
        self._filler, self._progress, self._meter = filler, progress, filler.meter
        self.number, self.left = progress.now.epoch, progress.left(progress.now)
        self.ended = ""  # the reason why it yields no more batches; the next request raises an error with it
        self._since = time.perf_counter()
        if not self.left:
            progress.advance()

    __reduce__ = refuse_to_copy

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch has been yielded; accelerate asks for it."""
        return not self.left

    @property
    def remainder(self) -> int:
        """Rows that count in the last global batch, 0 if all do; accelerate asks for it."""
        return self._progress.remainder

    def restart(self, filler: Filler) -> None:
        """Yield the batches of another epoch instead, from a filler that has not been started."""
        now = self._progress.now
        self._filler, self.number, self.left = filler, now.epoch, self._progress.left(now)
        filler.start(self)

    def __next__(self) -> Batch:
        if self.ended or not self.left or self._filler.forked():
            raise self._end()
        try:
            pending = self._wait()
            if isinstance(pending, BaseException):  # from the filler, which is ending
                self._filler.stop()
                raise pending
            return self._receive(pending)
        except BaseException as error:
            # This can be Ctrl-C. A batch may be lost, so this epoch must not continue; the user can resume it or start
            # the next one. Do not wait for the threads here: they may be waiting for the user.
            self.ended = f"{type(error).__name__}: {error}"
            self._filler.request_stop()
            raise

    def _end(self) -> StopIteration | RuntimeError:
        """End the threads if all batches were yielded, and return what to raise instead of yielding another."""
        if not self.left:
            self.ended = self.ended or "all batches were yielded"
            if sys.modules.get(accelerate.STATE):
                accelerate.leave(self)
            self._filler.stop()
            return StopIteration()
        if self.ended:
            return RuntimeError(f"this epoch has ended: {self.ended}")
        return RuntimeError("this epoch was started before a fork and has no threads here; start a new one")

    def _wait(self) -> PendingBatch | BaseException:
        self._meter.batches_ready += self._filler.ready.qsize()
        with suppress(Empty):
            return self._filler.ready.get_nowait()
        start, held = time.perf_counter(), self._meter.seconds_held
        with mark("wait"):
            while True:
                with suppress(Empty):
                    pending = self._filler.ready.get(timeout=POLL_SECONDS)
                    break
        # While the filler was held back, training waited for the device itself, not for the Loader.
        held = self._meter.seconds_held - held
        self._meter.seconds_waited += max(0.0, time.perf_counter() - start - held)
        self._meter.waits += 1
        return pending

    def _receive(self, pending: PendingBatch) -> Batch:
        self._filler.allowances.put(None)
        batch = self._filler.delivery.receive(pending)
        self.left -= 1
        self._progress.advance()
        if sys.modules.get(accelerate.STATE):
            accelerate.enter(self)
        meter, now = self._meter, time.perf_counter()
        meter.batches += 1
        meter.rows += len(pending.step.rows)
        meter.seconds, self._since = meter.seconds + now - self._since, now
        return batch


class Filler:
    """A thread that fills slots ahead of the consumer, from `start` until `stop` or until its epoch is gone.

    `ready` contains the batches, or the exception that ended the thread. At most `prefetch` batches are ready or in
    progress. Each item of `allowances` lets the thread start one more batch, so put one for each batch taken.
    """

    def __init__(self, steps: Steps, reader: Reader, delivery: Delivery, meter: Meter, prefetch: int) -> None:
        self.delivery, self.meter = delivery, meter
        self.ready: SimpleQueue[PendingBatch | BaseException] = SimpleQueue()
        self.owner: Callable[[], Epoch | None] = lambda: None  # the epoch that yields the batches, unless it is gone
        self._steps = steps
        # The thread deletes the reader when it ends, so that files are unmapped even if the user keeps the iterator.
        self._reader = reader
        self._in_progress: deque[PendingBatch] = deque()
        self._calls: SimpleQueue[tuple[Call, SimpleQueue[Result] | None] | None] = SimpleQueue()
        self.allowances: SimpleQueue[object] = SimpleQueue()
        for _ in range(prefetch):
            self.allowances.put(None)
        self._process = os.getpid()
        self._started: list[int] = []
        self._stopped = self._ended = False
        self._end: SimpleQueue[None] = SimpleQueue()

    def start(self, epoch: Epoch) -> None:
        """Start the thread. It also ends when `epoch`, to which it does not refer, is gone."""
        # The callback only wakes the thread, which then ends after its current batch.
        self.owner = weakref.ref(epoch, self.allowances.put)
        # After Ctrl-C inside Thread.start(), nobody would know whether a thread was started, and dropping a Thread runs
        # Python code (threading._dangling). So the main thread starts one without a Thread, which starts the filler's.
        self._started.extend(map(start_new_thread, [self._start_thread], [()]))

    def forked(self) -> bool:
        """Whether this process is a child of the one that has the thread."""
        return self._process != os.getpid()

    def request_stop(self) -> None:
        """Ask the thread to end after its current batch."""
        self._stopped = True
        self.allowances.put(None)

    def stop(self) -> None:
        """End the thread, wait for it, and drop ready batches. It can be called again, also after an interrupt."""
        self.request_stop()
        # A finalizer can call this in any thread. A thread of the Loader must not wait: the filler may wait for it.
        if isinstance(threading.current_thread(), LoaderThread):
            return
        if self._started and not self.forked():
            # Ctrl-C between acquire() and release() would keep a lock locked, and join() would then treat the thread as
            # ended (CPython before 3.13). A flag cannot be lost; the queue only ends the wait early.
            while not self._ended:
                with suppress(Empty):
                    self._end.get(timeout=POLL_SECONDS)
        with suppress(Empty):
            while True:
                self.ready.get_nowait()
        self.ready.put(RuntimeError("this epoch was ended by another thread"))  # wakes a thread that waits in get()

    def _start_thread(self) -> None:
        try:
            LoaderThread(self._run, "filler")
        except BaseException as error:  # the system allows no more threads
            self.ready.put(error)
            self._finish()

    def _run(self) -> None:
        copying: list[threading.Thread] = []
        try:
            running_fillers.add(self)
            for number in range(self._reader.threads):
                copying.append(LoaderThread(self._copy, f"copy-{number}"))
            self.delivery.enter()
            self._fill()
        except BaseException as error:  # every kind: otherwise the consumer would wait forever for a dead thread
            self.ready.put(error)
        finally:
            self._stopped = True  # skips hints that are still queued
            for _ in copying:
                self._calls.put(None)
            for thread in copying:
                thread.join()
            while self._in_progress:  # the copying threads have ended, so their slots are free
                self.delivery.slots.give_back(self._in_progress.popleft().slot)
            del self._reader
            running_fillers.discard(self)
            self._finish()

    def _finish(self) -> None:
        self._ended = True
        self._end.put(None)

    def _fill(self) -> None:
        for step in self._steps:
            if self.allowances.empty():  # waiting can take long, so deliver the batches in progress first
                while self._in_progress:
                    self.ready.put(self._finished_batch())
            self.allowances.get()
            if self._must_stop():
                return
            self._begin(step)
            if len(self._in_progress) == BATCHES_IN_PROGRESS:
                self.ready.put(self._finished_batch())
        while self._in_progress:
            self.ready.put(self._finished_batch())

    def _begin(self, step: StepRows) -> None:
        """Queue a step for the copying threads: read its hints ahead, and read its rows into a slot."""
        for rows in step.hints:
            self.meter.hints += 1
            if hint := self._reader.hint(self.delivery.lacking(rows)):
                self.meter.cold += 1
                self._calls.put((hint, None))  # nobody needs the result: if the hint fails, the reader will fail too
        rows = self.delivery.lacking(step.rows)
        start = time.perf_counter()
        pending = PendingBatch(step, rows, self.delivery.take())
        self.meter.seconds_sending += time.perf_counter() - start
        self._in_progress.append(pending)
        for call in self._reader.calls(rows, pending.slot.pixels[: len(rows)]):
            self._calls.put((call, pending.results))
            pending.calls += 1

    def _finished_batch(self) -> PendingBatch:
        """Wait until the oldest batch in progress has been read, and make it.

        The caller must keep it in no variable, because the consumer may drop it at once.
        """
        pending = self._in_progress[0]
        for result in [pending.results.get() for _ in range(pending.calls)]:
            if isinstance(result, BaseException):
                raise result
            self.meter.seconds_reading += result[0]
            self.meter.seconds_reading_cpu += result[1]
        self.meter.seconds_held += self.delivery.hold(self._must_stop)
        self._in_progress.popleft()  # from now on, the delivery gives the slot back
        start = time.perf_counter()
        with mark("deliver"):
            self.delivery.make_batch(pending, *self._reader.arrays(pending.step.rows))
        self.meter.seconds_transforming += pending.seconds_transforming
        self.meter.seconds_sending += time.perf_counter() - start - pending.seconds_transforming
        return pending

    def _copy(self) -> None:
        """Run queued calls in order until None arrives."""
        while (item := self._calls.get()) is not None:
            call, results = item
            if results is None and self._must_stop():
                continue
            try:
                with mark("copy"):
                    result: Result = timed(call)
            except BaseException as error:  # every kind: the filler waits for each call
                result = error
            if results is not None:
                results.put(result)

    def _must_stop(self) -> bool:
        return self._stopped or self.owner() is None


def timed(call: Call) -> tuple[float, float]:
    """Call a function; return the elapsed seconds and the processor seconds of this thread."""
    start, cpu = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - start, time.thread_time() - cpu


class LoaderThread(threading.Thread):
    """A thread of a Loader. It starts when created, and does not keep the interpreter from exiting."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=f"decodeonce-{name}", daemon=True)
        self.start()


running_fillers: set[Filler] = set()


@atexit.register
def stop_all() -> None:
    """End all threads at exit: one that is inside torch when the interpreter ends can crash the process."""
    for filler in list(running_fillers):
        filler.stop()
