"""The worker processes of a task: which block each one has, what a dead one was working on, when to stop."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from decodeonce.errors import Stopped
from decodeonce.prep.build.block_queue import BlockQueue
from decodeonce.prep.processes.child import child_of

WORKER = "decodeonce.prep.build.worker"
# Of the largest that are decoded at all, 178 Mpixel, a progressive CMYK JPEG took 10 s, a lossless WebP 8 s. This much
# processor time, if the system says how much a process took: a machine that is busy or swaps must not make rejects.
IMAGE_SECONDS = 120.0
HANGING_SECONDS = 3600.0  # by the clock: a --map may wait for ever without a processor
STRIKES = 2
TICK_SECONDS = 1.0
KILLED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGXCPU)  # an operator, the OOM killer, a limit
# What kills a library that unpacks, as of Parquet. Not SIGBUS: a mapped file was cut, or its file system fails.
READER_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker of a task is told at its start."""

    out: str
    task: int
    tasks: int
    fail_on_bad: bool


class Watched(NamedTuple):
    """The image that a worker is decoding, since when, and the processor time that the worker had used by then."""

    row: int | None = None
    since: float = 0.0
    spent: float = 0.0


_ending = False


def stop_after_blocks() -> None:
    """Have this process's pool start no further block, and stop once those in hand are done; for a signal handler."""
    global _ending
    _ending = True


class Worker:
    """One worker process, the blocks it has in hand, and the image it is decoding."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.process = child_of(WORKER)
        self.process.send(vars(settings))
        self.in_hand: list[int] = []
        self.last: int | None = None
        self.limit_passed = 0.0
        self._watched = Watched()
        self._looked = 0.0

    @property
    def row(self) -> int | None:
        """The planned row whose image is being decoded, if any."""
        return self.process.heartbeat.decoding

    def kill_if_stuck(self) -> None:
        """Kill the worker once calls to this have seen it at the same image for longer than a limit."""
        row, now = self.row, time.monotonic()
        unwatched = now - self._looked > 5 * TICK_SECONDS  # this process was itself stopped, or starved
        self._looked = now
        spent = processor_seconds(self.process.pid, unknown=now)
        if row is None or row != self._watched.row or unwatched:
            self._watched = Watched(row, now, spent)
            return
        clock = now - self._watched.since
        if min(clock, spent - self._watched.spent) > IMAGE_SECONDS:  # a --map may run on several processors
            self.limit_passed = IMAGE_SECONDS
        elif clock > HANGING_SECONDS:
            self.limit_passed = HANGING_SECONDS
        if self.limit_passed:
            self.process.kill()


class WorkerPool:
    """Runs blocks on up to `size` worker processes; `workers` are those alive."""

    def __init__(self, settings: WorkerSettings, size: int, queue: BlockQueue, rounds: dict[int, int]) -> None:
        self.workers: set[Worker] = set()
        self._settings, self._size, self._queue, self._rounds = settings, size, queue, rounds
        self._selector = selectors.DefaultSelector()
        self._strikes: Counter[int] = Counter()
        self._poison: dict[int, str] = {}
        self._idle_deaths = 0

    def run(self) -> Generator[dict[str, Any] | None, None, None]:
        """Do the blocks; yield what BlockWriter.write returns of each, and None about once a second.

        Raises:
            DecodeonceError, OSError: What the first failing worker raised.
            Stopped: After stop_after_blocks(), or workers keep dying. However the loop ends, all workers are killed and
                reaped: a killed one loses only blocks that were not yet reported as done.
        """
        count, looked = len(self._queue), 0.0
        try:
            for _ in range(min(self._size, count)):
                self._start_worker()
            # A worker that is still starting when there is nothing left to do is not waited for.
            while self.workers and (self._queue or any(worker.in_hand for worker in self.workers)):
                for key, _ in self._selector.select(TICK_SECONDS):
                    yield from self._hear(key.data)
                if time.monotonic() - looked >= TICK_SECONDS:  # answers may come a thousand times a second
                    looked = time.monotonic()
                    for worker in self.workers:
                        worker.kill_if_stuck()
                yield None
        finally:
            for worker in self.workers:
                worker.process.end()
            self.workers.clear()
            self._selector.close()
        if self._queue:
            left = f"ended with the blocks in hand, {len(self._queue)} of {count} are left"
            raise Stopped(f"SIGUSR1: {left}; what is done is kept: run the same command again to go on")

    def _start_worker(self) -> None:
        worker = Worker(self._settings)
        self.workers.add(worker)
        self._selector.register(worker.process.socket, selectors.EVENT_READ, worker)

    def _hear(self, worker: Worker) -> Iterator[dict[str, Any]]:
        messages = worker.process.receive()
        if messages is None:
            self._selector.unregister(worker.process.socket)
            self.workers.remove(worker)
            if self._died(worker) and self._queue and not _ending:
                self._start_worker()
            return
        for message in messages:
            if "report" in message:
                worker.in_hand.remove(message["report"]["block"])
                self._idle_deaths = 0
                yield message["report"]
            else:
                worker.process.send(self.order(worker))

    def order(self, worker: Worker) -> dict[str, Any] | None:
        """What the worker is to do next; None for nothing: it ends when what it has in hand is durable."""
        others = {other.last for other in self.workers if other is not worker and other.last is not None}
        block = None if _ending else self._queue.next(worker.last, others)
        if block is None:
            worker.last = None  # it takes no block any more, so none is kept for it
            return None
        worker.in_hand.append(block)
        worker.last = block
        return {"block": block, "round": self._rounds.get(block, 0), "poison": self._poison}

    def _died(self, worker: Worker) -> bool:
        """Put a dead worker's blocks back; an image that killed its decoder STRIKES times will be a reject.

        Returns whether it had not been dismissed.
        """
        row, status = worker.row, worker.process.wait()
        if status in READER_CRASHES and row is None:
            row = worker.process.heartbeat.reading
        worker.process.end()
        self._queue.put_back(worker.in_hand)
        if status == 0 and not worker.in_hand:
            return False
        if row is None or (status in KILLED_FROM_OUTSIDE and not worker.limit_passed):
            self._idle_deaths += 1
            if self._idle_deaths > self._size + STRIKES:
                hint = "fewer --workers need less memory; " if status in KILLED_FROM_OUTSIDE else "see above; "
                raise Stopped(f"workers keep dying (exit status {status}); {hint}then run the same command again")
            return True
        self._strikes[row] += 1
        if self._strikes[row] >= STRIKES:
            limit = worker.limit_passed
            died = f"took more than {limit:.4g} s" if limit else f"died with exit status {status}"
            self._poison[row] = f"the decoder {died}, {STRIKES} times"
        return True


def processor_seconds(pid: int, *, unknown: float) -> float:
    """The processor time that a process has taken, in seconds; `unknown` if the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return unknown
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
