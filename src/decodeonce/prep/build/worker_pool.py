"""The worker processes of a task: hand out blocks, handle workers that die or hang, stop early."""

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
# Processor time for one image. At the maximum of 178 Mpixel, a progressive CMYK JPEG took 10 s, a lossless WebP 8 s.
# If the processor time is known, it counts instead of the clock: a busy machine must not cause rejects.
IMAGE_SECONDS = 120.0
HANGING_SECONDS = 3600.0  # by the clock, because a --map may wait forever without using a processor
STRIKES = 2
TICK_SECONDS = 1.0
KILLED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGXCPU)  # an operator, the OOM killer, a limit
# Signals from a library that crashes on damaged data, such as Parquet's. SIGBUS is not one of them: it means that a
# mapped file was truncated or that its file system fails.
READER_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)


@dataclass(frozen=True)
class WorkerSettings:
    """The settings that every worker of a task receives when it starts."""

    out: str
    task: int
    tasks: int
    fail_on_bad: bool


class Watched(NamedTuple):
    """The row that a worker is decoding, when this was first seen, and the worker's processor time at that moment."""

    row: int | None = None
    since: float = 0.0
    spent: float = 0.0


_ending = False


def stop_after_blocks() -> None:
    """Make this process's pool stop after the blocks that are being decoded. Safe to call in a signal handler."""
    global _ending
    _ending = True


class Worker:
    """One worker process, the blocks it is working on, and the image it is decoding."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.process = child_of(WORKER)
        self.process.send(vars(settings))
        self.blocks: list[int] = []
        self.last: int | None = None
        self.limit_passed = 0.0
        self._watched = Watched()
        self._looked = 0.0

    @property
    def row(self) -> int | None:
        """The planned row whose image is being decoded, if any."""
        return self.process.heartbeat.decoding

    def kill_if_stuck(self) -> None:
        """Kill the worker if repeated calls have seen it at the same image for longer than a limit."""
        row, now = self.row, time.monotonic()
        unwatched = now - self._looked > 5 * TICK_SECONDS  # this process itself was stopped or got no processor time
        self._looked = now
        spent = processor_seconds(self.process.pid, unknown=now)
        if row is None or row != self._watched.row or unwatched:
            self._watched = Watched(row, now, spent)
            return
        clock = now - self._watched.since
        if min(clock, spent - self._watched.spent) > IMAGE_SECONDS:  # min: a --map may use several processors
            self.limit_passed = IMAGE_SECONDS
        elif clock > HANGING_SECONDS:
            self.limit_passed = HANGING_SECONDS
        if self.limit_passed:
            self.process.kill()


class WorkerPool:
    """Decodes blocks on up to `size` worker processes.

    Args:
        settings: The settings of every worker.
        size: Maximum number of workers.
        queue: The blocks to decode.
        rounds: The round of each block.

    Attributes:
        workers: The workers that are alive.
    """

    def __init__(self, settings: WorkerSettings, size: int, queue: BlockQueue, rounds: dict[int, int]) -> None:
        self.workers: set[Worker] = set()
        self._settings, self._size, self._queue, self._rounds = settings, size, queue, rounds
        self._selector = selectors.DefaultSelector()
        self._strikes: Counter[int] = Counter()
        self._poison: dict[int, str] = {}
        self._idle_deaths = 0

    def run(self) -> Generator[dict[str, Any] | None, None, None]:
        """Decode the blocks; yield the report of each from BlockWriter.write, and None about once per second.

        However the loop ends, all workers are killed and reaped. A killed worker loses only blocks that it has not
        reported yet.

        Raises:
            DecodeonceError, OSError: What the first failing worker raised.
            Stopped: stop_after_blocks() was called, or workers keep dying.
        """
        count, looked = len(self._queue), 0.0
        try:
            for _ in range(min(self._size, count)):
                self._start_worker()
            # Do not wait for a worker that is still starting when no block is left.
            while self.workers and (self._queue or any(worker.blocks for worker in self.workers)):
                for key, _ in self._selector.select(TICK_SECONDS):
                    yield from self._hear(key.data)
                if time.monotonic() - looked >= TICK_SECONDS:  # reports may arrive a thousand times per second
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
            left = f"stopped after the current blocks, {len(self._queue)} of {count} are left"
            raise Stopped(f"SIGUSR1: {left}; completed blocks are kept; run the same command again to resume")

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
                worker.blocks.remove(message["report"]["block"])
                self._idle_deaths = 0
                yield message["report"]
            else:
                worker.process.send(self.order(worker))

    def order(self, worker: Worker) -> dict[str, Any] | None:
        """Return the worker's next order, or None: the worker then ends once its current blocks are durable."""
        others = {other.last for other in self.workers if other is not worker and other.last is not None}
        block = None if _ending else self._queue.next(worker.last, others)
        if block is None:
            worker.last = None  # so that the queue reserves no block for it
            return None
        worker.blocks.append(block)
        worker.last = block
        return {"block": block, "round": self._rounds.get(block, 0), "poison": self._poison}

    def _died(self, worker: Worker) -> bool:
        """Put a dead worker's blocks back into the queue. An image that killed STRIKES decoders becomes a reject.

        Returns:
            Whether the worker died unexpectedly.
        """
        row, status = worker.row, worker.process.wait()
        if status in READER_CRASHES and row is None:
            row = worker.process.heartbeat.reading
        worker.process.end()
        self._queue.put_back(worker.blocks)
        if status == 0 and not worker.blocks:
            return False
        if row is None or (status in KILLED_FROM_OUTSIDE and not worker.limit_passed):
            self._idle_deaths += 1
            if self._idle_deaths > self._size + STRIKES:
                outside = status in KILLED_FROM_OUTSIDE
                advice = "pass fewer --workers if memory is short" if outside else "see the messages above"
                raise Stopped(f"workers keep dying (exit status {status}); {advice}, then run the same command again")
            return True
        self._strikes[row] += 1
        if self._strikes[row] >= STRIKES:
            limit = worker.limit_passed
            died = f"took more than {limit:.4g} s" if limit else f"died with exit status {status}"
            self._poison[row] = f"the decoder {died}, {STRIKES} times"
        return True


def processor_seconds(pid: int, *, unknown: float) -> float:
    """Return the processor time of a process in seconds; `unknown` if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return unknown
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
