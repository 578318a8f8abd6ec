"""The worker processes of a task: which block each decodes next, workers that die or hang, stopping early."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decodeonce.errors import Stopped
from decodeonce.prep.building.plan import Plan
from decodeonce.prep.processes.child import child_of, wait_for
from decodeonce.store.reader import runs

CUT_SEARCH = 64  # blocks to search on each side of a run's middle for a place to cut
Span = tuple[int, int]  # the first and the last read unit of a block


def block_spans(plan: Plan, blocks: Sequence[int]) -> dict[int, Span]:
    """Return the read units that hold the rows of each block; empty if samples are read one at a time."""
    if not plan.facts["source"]["read_unit"]:
        return {}
    units = plan.samples.rows["unit"]
    return {b: (int(units[plan.blocks[b].first]), int(units[plan.blocks[b].last - 1])) for b in blocks}


class BlockQueue:
    """The blocks that no worker has taken yet, in ascending order.

    Without `spans`, workers take blocks in order. With `spans`, blocks that share a read unit go to the same worker if
    possible. A worker continues with the block after its last one. A new worker takes the second half of the longest
    run of blocks. The run is cut where a read unit ends, or otherwise inside a unit that is neither the run's first nor
    its last. That unit is then read twice.

    Args:
        blocks: The blocks to decode.
        spans: First and last read unit of each block, from `block_spans`.
    """

    def __init__(self, blocks: Sequence[int], spans: dict[int, Span]) -> None:
        self._spans = spans
        self._runs: list[list[int]] = []  # each in reverse, so that the next one is at the end
        self.put_back(blocks)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def put_back(self, blocks: Sequence[int]) -> None:
        """Return blocks to the queue, ahead of all others."""
        if not blocks:
            return
        if not self._spans:
            rest = self._runs.pop() if self._runs else []
            self._runs = [[*rest, *reversed(blocks)]]
            return
        for start, end in runs(np.diff(blocks) != 1):
            self._runs.append(list(reversed(blocks[start:end])))

    def next(self, after: int | None, others: Collection[int]) -> int | None:
        """Take a block for a worker.

        Args:
            after: The worker's previous block, if any.
            others: The previous blocks of all other workers.

        Returns:
            The block, or None if the queue is empty or every remaining run would have to be read twice completely.
        """
        self._runs = [run for run in self._runs if run]
        if not self._runs:
            return None
        if not self._spans:
            return self._runs[0].pop()
        for run in self._runs:
            if after is not None and run[-1] == after + 1:
                return run.pop()
        for run in sorted(self._runs, key=len, reverse=True):
            if run[-1] - 1 not in others:
                return run.pop()
            if (cut := self._cut(run)) is not None:
                self._runs.append(run[:cut])
                del run[:cut]
                return self._runs[-1].pop()
        return None

    def _cut(self, run: list[int]) -> int | None:
        """Return how many blocks, about half, another worker may take from the end of a run; None if it cannot."""
        first, last = self._spans[run[-1]][0], self._spans[run[0]][1]
        half = len(run) // 2
        cuts = sorted(range(1, len(run)), key=lambda cut: abs(cut - half))
        between = [(cut, self._spans[run[cut]][1], self._spans[run[cut - 1]][0]) for cut in cuts[: 2 * CUT_SEARCH]]
        clean = [cut for cut, before, after in between if before != after]
        inside = [cut for cut, before, after in between if first != before == after != last]
        return next(iter([*clean, *inside]), None)


WORKER = "decodeonce.prep.building.worker"
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
                by_process = {worker.process: worker for worker in self.workers}
                for process in wait_for(by_process, TICK_SECONDS):
                    yield from self._hear(by_process[process])
                if time.monotonic() - looked >= TICK_SECONDS:  # reports may arrive a thousand times per second
                    looked = time.monotonic()
                    for worker in self.workers:
                        worker.kill_if_stuck()
                yield None
        finally:
            for worker in self.workers:
                worker.process.end()
            self.workers.clear()
        if self._queue:
            left = f"stopped after the current blocks, {len(self._queue)} of {count} are left"
            raise Stopped(f"SIGUSR1: {left}; completed blocks are kept; run the same command again to resume")

    def _start_worker(self) -> None:
        self.workers.add(Worker(self._settings))

    def _hear(self, worker: Worker) -> Iterator[dict[str, Any]]:
        messages = worker.process.receive()
        if messages is None:
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
