"""Worker processes and the blocks they are given: who is at what, what a dead one was doing, when to stop.

Workers are plain subprocesses of this Python, not multiprocessing: no fork of a program with threads, no second import
of the caller's script, nothing shared but pipes and one page each.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Container, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.build.block_queue import Deal, Span
from decodeonce.prep.build.heartbeat import Beat
from decodeonce.prep.processes.spawn import signals_held, spawn

# Of the largest that are decoded at all, 178 Mpixel, a progressive CMYK JPEG took 10 s, a lossless WebP 8 s. This much
# processor time, if the system says how much a process took: a machine that is busy or swaps must not make rejects.
PICTURE_SECONDS = 120.0
HANGING_SECONDS = 3600.0  # by the clock: a --map may wait for ever without a processor
STRIKES = 2
TICK_SECONDS = 1.0
NOT_THE_PICTURE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGXCPU)  # an operator, the OOM killer, a limit
# What kills a library that unpacks, as of Parquet. Not SIGBUS: a mapped file was cut, or its file system fails.
OF_READING = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker of a task is told at its start."""

    out: Path
    task: int
    tasks: int
    fail_on_bad: bool


class Watched(NamedTuple):
    """The picture that a worker is at, since when, and the processor time that the worker had taken by then."""

    row: int | None = None
    since: float = 0.0
    spent: float = 0.0


_alive: set[int] = set()
_ending = False


def end_with_blocks() -> None:
    """Have this process's pool begin no further block, and stop when those in hand are done; for a signal handler."""
    global _ending
    _ending = True


def kill_workers() -> None:
    """Kill and reap every worker of this process; for a signal handler that then ends the process."""
    for pid in list(_alive):
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Worker:
    """One worker process: its pipes, its blocks in hand, and the picture it is at."""

    def __init__(self, settings: WorkerSettings) -> None:
        beat_fd = Beat.new_fd()
        self._beat = Beat(beat_fd)
        on_bad = "fail" if settings.fail_on_bad else "reject"
        arguments = [str(settings.out), str(settings.task), str(settings.tasks), str(beat_fd), on_bad]
        module, pipe = "decodeonce.prep.build.worker", subprocess.PIPE
        with signals_held():
            self.process = spawn(module, arguments, fd=beat_fd, stdin=pipe, stdout=pipe)
            _alive.add(self.process.pid)
        os.close(beat_fd)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self.output = self.process.stdin, self.process.stdout
        self.in_hand: list[int] = []
        self.last: int | None = None
        self.dismissed = False
        self.limit_passed = 0.0
        self._unread = b""
        self._watched = Watched()
        self._looked = 0.0

    @property
    def row(self) -> int | None:
        """The planned row whose picture is being decoded, if any."""
        return self._beat.row

    @property
    def read_row(self) -> int | None:
        """The planned row that is being read, if any."""
        return self._beat.read_row

    def kill_if_stuck(self) -> None:
        """Kill the worker once calls to this have seen it at the same picture for more than a limit."""
        row, now = self.row, time.monotonic()
        unwatched = now - self._looked > 5 * TICK_SECONDS  # this process was itself stopped, or starved
        self._looked = now
        spent = processor_seconds(self.process.pid, unknown=now)
        if row is None or row != self._watched.row or unwatched:
            self._watched = Watched(row, now, spent)
            return
        clock = now - self._watched.since
        if min(clock, spent - self._watched.spent) > PICTURE_SECONDS:  # a --map may run on several processors
            self.limit_passed = PICTURE_SECONDS
        elif clock > HANGING_SECONDS:
            self.limit_passed = HANGING_SECONDS
        if self.limit_passed:
            self.process.kill()

    def order(self, block: int, round_: int, poison: dict[int, str]) -> None:
        """Give the worker a block; one that has died is found at its end of file."""
        self.in_hand.append(block)
        self.last = block
        self._tell(json.dumps({"block": block, "round": round_, "poison": poison}).encode() + b"\n")

    def dismiss(self) -> None:
        """No more blocks: the worker ends when what it has in hand is durable."""
        self.dismissed = True
        self._tell(b"")

    def answers(self) -> Iterator[dict[str, Any]] | None:
        """The answers that have come, or None at the worker's end; call when its output is readable."""
        chunk = os.read(self.output.fileno(), 1 << 16)
        if not chunk:
            return None
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return map(json.loads, lines)

    def end(self) -> None:
        """Kill if still alive, reap, close."""
        self.process.kill()
        self.process.wait()
        _alive.discard(self.process.pid)
        with suppress(BrokenPipeError):  # closing flushes, and there is nobody to read
            self._input.close()
        self.output.close()
        self._beat.close()

    def _tell(self, encoded: bytes) -> None:
        with suppress(BrokenPipeError):  # it has died: its end of file says so, and with which status
            if encoded:
                self._input.write(encoded)
                self._input.flush()
            else:
                self._input.close()


@dataclass
class Pool:
    """Runs blocks on `workers` processes, each block in its round; `crew` are those alive, `hired` all process ids.

    `spans` are the blocks' read units, where samples are not read by themselves.
    """

    settings: WorkerSettings
    workers: int
    rounds: dict[int, int]
    spans: dict[int, Span] = field(default_factory=dict)
    crew: set[Worker] = field(default_factory=set)
    hired: set[int] = field(default_factory=set)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _left: Deal = field(default_factory=lambda: Deal([], {}))
    _strikes: Counter[int] = field(default_factory=Counter)
    _poison: dict[int, str] = field(default_factory=dict)
    _idle_deaths: int = 0

    def run(self, blocks: list[int]) -> Generator[dict[str, Any] | None, None, None]:
        """Do the blocks; yields what BlockWriter.write returns of each, and None about once a second.

        Raises Stopped or BuildError as the first failing worker says, and Stopped after end_with_blocks(). Whatever
        ends the loop, all workers are killed and reaped: a killed one loses only blocks that nobody was told are done.
        """
        self._left, looked = Deal(blocks, self.spans), 0.0
        try:
            for _ in range(min(self.workers, len(blocks))):
                self._hire()
            while self.crew:
                for key, _ in self._selector.select(TICK_SECONDS):
                    yield from self._hear(key.data)
                if time.monotonic() - looked >= TICK_SECONDS:  # answers may come a thousand times a second
                    looked = time.monotonic()
                    for worker in self.crew:
                        worker.kill_if_stuck()
                yield None
        finally:
            for worker in self.crew:
                worker.end()
            self.crew.clear()
            self._selector.close()
        if self._left:
            left = f"ended with the blocks in hand, {len(self._left)} of {len(blocks)} are left"
            raise Stopped(f"SIGUSR1: {left}; what is done is kept: run the same command again to go on")

    def leave(self, blocks: Container[int]) -> list[int]:
        """Begin none of these blocks, which another process has done; returns those that were still to be begun."""
        return self._left.take_out(blocks)

    def part_ways(self) -> None:
        """Go on in an order of this process's own: another one is at the same blocks."""
        self._left.shuffle()

    def _hire(self) -> None:
        worker = Worker(self.settings)
        self.crew.add(worker)
        self.hired.add(worker.process.pid)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)

    def _hear(self, worker: Worker) -> Iterator[dict[str, Any]]:
        answers = worker.answers()
        if answers is None:
            self._selector.unregister(worker.output)
            self.crew.remove(worker)
            self._bury(worker)
            # Blocks that are left may be somebody's to come, and one who was dismissed for that would be so again.
            if self._left and not _ending and not (worker.dismissed and any(not w.dismissed for w in self.crew)):
                self._hire()
            return
        for answer in answers:
            if "failed" in answer:
                raise (Stopped if answer["stopped"] else BuildError)(answer["failed"])
            if "done" in answer:
                worker.in_hand.remove(answer["done"])
                self._idle_deaths = 0
                yield answer
            elif (block := self._next_for(worker)) is not None:
                worker.order(block, self.rounds.get(block, 0), self._poison)
            else:
                worker.dismiss()

    def _next_for(self, worker: Worker) -> int | None:
        others = {other.last for other in self.crew if other is not worker and other.last is not None}
        return None if _ending else self._left.next(worker.last, others)

    def _bury(self, worker: Worker) -> None:
        """Put a dead worker's blocks back; a picture that killed its decoder STRIKES times will be a reject."""
        row, status = worker.row, worker.process.wait()
        if status in OF_READING and row is None:
            row = worker.read_row
        worker.end()
        self._left.put_back(worker.in_hand)
        if status == 0 and not worker.in_hand:
            return
        if row is None or (status in NOT_THE_PICTURE and not worker.limit_passed):
            self._idle_deaths += 1
            if self._idle_deaths > self.workers + STRIKES:
                hint = "fewer --workers need less memory; " if status in NOT_THE_PICTURE else "see above; "
                raise Stopped(f"workers keep dying (exit status {status}); {hint}then run the same command again")
            return
        self._strikes[row] += 1
        if self._strikes[row] >= STRIKES:
            limit = worker.limit_passed
            died = f"took more than {limit:.4g} s" if limit else f"died with exit status {status}"
            self._poison[row] = f"the decoder {died}, {STRIKES} times"


def processor_seconds(pid: int, *, unknown: float) -> float:
    """The processor time that a process has taken, in seconds; `unknown` if the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return unknown
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
