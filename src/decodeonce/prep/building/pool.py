"""The second step of a build: a task decodes its share of the blocks in worker processes, possibly next to other tasks.

This module decides which block each worker decodes next, and handles workers that die or hang and early stops.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decodeonce.errors import BuildError, Stopped
from decodeonce.host import usable_cores
from decodeonce.prep.building.journal import Journal, Journals
from decodeonce.prep.building.output_dir import failure_of
from decodeonce.prep.building.plan import Plan, allowed_rejects, read_plan, reject_error
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.processes.child import BLOCK_WORKER, KILLED, child_of, user_death, wait_for
from decodeonce.prep.recipe import OnBad, differences
from decodeonce.remote import QUERY
from decodeonce.store.files import sync_folder
from decodeonce.store.layout import Json, check_choice
from decodeonce.store.manifest import overlap
from decodeonce.store.reader import runs


@dataclass(frozen=True)
class Progress:
    """The progress of a task. Rows count once they are durable.

    Args:
        rows: Completed rows of the task's share.
        total_rows: Rows of the task's share.
        new_rows: Rows completed by this run.
        bytes: Bytes written by this run.
        rejects: Rejects found when planning and in the task's share.

    Example:
        >>> reports = []
        >>> source, recipe = open_folder("imagenet/val"), Recipe(height=64, width=64)
        >>> manifest = build(source, Path("small.store"), recipe, progress=reports.append)
        >>> reports[-1].rows, reports[-1].total_rows
        (16, 16)
    """

    rows: int
    total_rows: int
    new_rows: int
    bytes: int
    rejects: int


@dataclass(frozen=True)
class WorkSettings:
    """How to decode the blocks of a build.

    Args:
        workers: Number of worker processes. None (default): one per usable core.
        task: Index of this task, 0 (default) to `tasks - 1`.
        tasks: Number of tasks that share the build. Default: 1.
        max_bad: Maximum number of rejects in the whole build: a number such as "25", a percentage of all images such as
            "0.1%", or "auto" (default). "auto" allows 0.1%. In a small source, where 0.1% is less than ten images, it
            allows a tenth of the images, at most ten.
        on_bad: What to do with an image that cannot be decoded. "reject" (default): record it and continue; "fail":
            stop the build.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> WorkSettings(workers=8, max_bad="0.1%")
        WorkSettings(workers=8, task=0, tasks=1, max_bad='0.1%', on_bad='reject')
    """

    workers: int | None = None
    task: int = 0
    tasks: int = 1
    max_bad: str = "auto"
    on_bad: OnBad = "reject"

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}, expected at least 1")
        if not 0 <= self.task < self.tasks:
            raise ValueError(f"task is {self.task} of {self.tasks}, expected 0 to {self.tasks - 1}")
        check_choice("on_bad", self.on_bad, OnBad)
        allowed_rejects(self.max_bad, 0)


def work(
    out: str | os.PathLike[str],
    how: WorkSettings | None = None,
    progress: Callable[[Progress], None] | None = None,
    plan: Plan | None = None,
) -> None:
    """Decode the blocks of one task's share that are not done yet.

    It is safe to kill this call at any moment, to repeat it, and to make it twice at the same time. Two processes that
    decode the same share write the same bytes. A task reads only its own share of plan and journals, so its startup
    time depends on the size of this share. If the store is already finished, there is nothing to do.

    Args:
        out: Folder of the planned store.
        how: Share, number of workers, and limits on rejects. Default: `WorkSettings()`, the whole store.
        progress: Called after each block, and at least once per second.
        plan: The plan of `out`, if this process has just made it. Default: it is read, and its decoders are compared
            with those that are installed.

    Raises:
        Stopped: Make the same call again. For example, a file system failed temporarily, or workers keep dying.
        BuildError: The build cannot continue until something changes. For example, an image is missing, or the rejects
            of the plan and of this share exceed `max_bad`. (`finish` checks the rejects of all shares.)

    Example:
        >>> out = Path("small.store")
        >>> plan = make_plan(open_folder("imagenet/val"), out, Recipe(height=64, width=64))
        >>> for task in range(2):  # on a cluster, each task is a process of its own
        ...     work(out, WorkSettings(task=task, tasks=2))
        >>> finish(out).count
        16
    """
    paths = BuildPaths(out)
    if paths.manifest.exists():
        return
    try:
        if plan is None:
            plan = read_plan(paths)
            _check_decoders(plan)
        sync_folder(paths.build)  # the process that created the journals' folder may have been killed before this
        _decode_share(plan, how or WorkSettings(), progress or (lambda done: None))
    except (BuildError, Stopped, OSError) as error:
        if not paths.manifest.exists():
            raise failure_of(error, paths) from None
        logging.getLogger("decodeonce").warning("%s: another process finished this build; nothing left to do", out)


def _check_decoders(plan: Plan) -> None:
    planned = plan.content["recipe"]["decoders"]
    found = decoder_versions(plan.recipe.container)
    if found != planned:
        raise BuildError(
            f"the installed decoders differ from the plan's: {'; '.join(differences(found, planned))}; "
            "install the plan's versions on every node, or remove OUT and plan again"
        )


def _decode_share(plan: Plan, how: WorkSettings, progress: Callable[[Progress], None]) -> None:
    """Decode the missing blocks of a task's share; raises as `work`."""
    share = plan.blocks.of_task(how.task, how.tasks)
    journals = Journals(plan.paths.journals, lambda task, tasks: bool(overlap(share, plan.blocks.of_task(task, tasks))))
    todo = [block for block in share if block not in journals.lines]
    known = [*plan.rejects, *plan.rejects_in(journals.records(share))]
    rejects, first = len(known), str(known[0]) if known else ""
    if how.on_bad == "fail" and first:
        raise reject_error(first)
    total, left = (sum(plan.blocks[block].rows for block in blocks) for blocks in (share, todo))
    rows, written = 0, 0
    plan.check_rejects(rejects, first, how.max_bad, total - left)
    progress(Progress(total - left, total, 0, 0, rejects))
    if not todo:
        return
    with closing(Journal(plan.paths.journals, how.task, how.tasks)) as journal:
        query = os.environ.get(QUERY, "")  # a worker may have been started before it was known
        message = {"out": str(plan.paths.root), "journal": str(journal.path), "on_bad": how.on_bad, "query": query}
        warned = False
        by_unit = plan.content["source"]["unit_name"]
        queue: Queue = UnitQueue(todo, block_spans(plan, todo)) if by_unit else BlockQueue(todo)
        pool = WorkerPool(message, how.workers or usable_cores(), queue, journal, plan.user_functions)
        for done in pool.run():
            if done is not None:
                rows, written, rejects = rows + done["rows"], written + done["bytes"], rejects + done["rejects"]
                first = first or done["first_reject"]
            if _ending and not rows and not warned:  # at once: the time limit may come before a block is completed
                warned = True
                text = "no block was completed in this run; if the next one ends like this, request more time (--time)"
                logging.getLogger("decodeonce").warning("%s: %s", plan.paths.root, text)
            plan.check_rejects(rejects, first, how.max_bad, total - left + rows)
            progress(Progress(total - left + rows, total, rows, written, rejects))


class BlockQueue:
    """The blocks that no worker has taken yet. Workers take them in ascending order."""

    def __init__(self, blocks: Iterable[int]) -> None:
        self._blocks = deque(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def take(self, worker: Hashable) -> int | None:
        """Take a block for a worker; None if there is none for it."""
        return self._blocks.popleft() if self._blocks else None

    def put_back(self, worker: Hashable, blocks: Sequence[int]) -> None:
        """Return the blocks of a worker that died, ahead of all others."""
        self._blocks.extendleft(reversed(blocks))


CUT_SEARCH = 64  # blocks to search on each side of a run's middle for a place to cut
Span = tuple[int, int]  # the first and the last read unit of a block


def block_spans(plan: Plan, blocks: Sequence[int]) -> dict[int, Span]:
    """Return the read units that hold the rows of each block."""
    units = plan.samples.records["unit"]
    return {b: (int(units[plan.blocks[b].first]), int(units[plan.blocks[b].last - 1])) for b in blocks}


class UnitQueue:
    """The queue for a source with read units: blocks that share a unit go to the same worker if possible.

    A worker continues with the block after its last one. A new worker takes the second half of the longest run of
    blocks. The run is cut where a read unit ends, or otherwise inside a unit that is neither the run's first nor its
    last. That unit is then read twice. A worker gets no block if every remaining run would be read twice completely.

    Args:
        blocks: The blocks to decode, ascending.
        spans: First and last read unit of each block, from `block_spans`.
    """

    def __init__(self, blocks: Sequence[int], spans: dict[int, Span]) -> None:
        self._spans = spans
        self._last: dict[Hashable, int] = {}  # the previous block of each worker
        self._runs: list[list[int]] = []  # each in reverse, so that the next one is at the end
        self.put_back(None, blocks)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def put_back(self, worker: Hashable, blocks: Sequence[int]) -> None:
        self._last.pop(worker, None)
        self._runs += [list(reversed(blocks[start:end])) for start, end in runs(np.diff(blocks) != 1)]

    def take(self, worker: Hashable) -> int | None:
        last = self._last.pop(worker, None)  # so that the queue reserves no block for a worker without one
        block = self._next(last)
        if block is not None:
            self._last[worker] = block
        return block

    def _next(self, last: int | None) -> int | None:
        """Take a block for the worker whose previous block was `last`; `_last` holds those of all other workers."""
        self._runs = [run for run in self._runs if run]
        for run in self._runs:
            if last is not None and run[-1] == last + 1:
                return run.pop()
        for run in sorted(self._runs, key=len, reverse=True):
            if run[-1] - 1 not in self._last.values():
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
        inside = [cut for cut, before, after in between if before == after and before not in (first, last)]
        return next(iter([*clean, *inside]), None)


Queue = BlockQueue | UnitQueue
# Processor time for one image. At the maximum of 178 Mpixel, a progressive CMYK JPEG took 10 s, a lossless WebP 8 s.
# If the processor time is known, it counts instead of the clock: a busy machine must not cause rejects.
IMAGE_SECONDS = 120.0
HANGING_SECONDS = 3600.0  # by the clock, because a --map may wait forever without using a processor
STRIKES = 2
TICK_SECONDS = 1.0
# Signals from a library that crashes on damaged data, such as Parquet's. SIGBUS is not one of them: it means that a
# mapped file was truncated or that its file system fails.
READER_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)


_ending = False


def stop_after_blocks() -> None:
    """Make this process's pool stop after the blocks that are being decoded. Safe to call in a signal handler."""
    global _ending
    _ending = True


class WorkerHandle:
    """One worker process, the blocks it is working on, and the image it is decoding."""

    def __init__(self, first_message: Json) -> None:
        self.child = child_of(BLOCK_WORKER)
        self.child.send(first_message)
        self.blocks: list[int] = []
        self.limit_passed = 0.0
        # The row that was last seen, when it was first seen, and the processor time at that moment.
        self._watched: tuple[int | None, float, float] = (None, 0.0, 0.0)
        self._looked = 0.0

    def kill_if_stuck(self) -> None:
        """Kill the worker if repeated calls have seen it at the same image for longer than a limit."""
        row, now = self.child.heartbeat.decoding, time.monotonic()
        unwatched = now - self._looked > 5 * TICK_SECONDS  # this process itself was stopped or got no processor time
        self._looked = now
        spent = processor_seconds(self.child.process.pid, unknown=now)
        watched, since, spent_before = self._watched
        if row is None or row != watched or unwatched:
            self._watched = (row, now, spent)
            return
        clock = now - since
        if min(clock, spent - spent_before) > IMAGE_SECONDS:  # min: a --map may use several processors
            self.limit_passed = IMAGE_SECONDS
        elif clock > HANGING_SECONDS:
            self.limit_passed = HANGING_SECONDS
        if self.limit_passed:
            self.child.process.kill()


class WorkerPool:
    """Decodes blocks on up to `size` worker processes.

    Args:
        first_message: What every worker receives when it starts.
        size: Maximum number of workers.
        queue: The blocks to decode.
        journal: Receives the line of each completed block.
        user_functions: Returns what the workers import, `module:function`, for messages; by default, nothing.

    Attributes:
        workers: The workers that are alive.
    """

    def __init__(
        self,
        first_message: Json,
        size: int,
        queue: Queue,
        journal: Journal,
        user_functions: Callable[[], list[str]] = list,
    ) -> None:
        self.workers: set[WorkerHandle] = set()
        self._journal, self._user_functions = journal, user_functions
        self._first_message, self._size, self._queue = first_message, size, queue
        self._strikes: Counter[int] = Counter()
        self._poison: dict[int, str] = {}
        self._idle_deaths = 0

    def run(self) -> Generator[Json | None, None, None]:
        """Decode the blocks; yield the report of each once it is in the journal, and None at least once per second.

        However the loop ends, all workers are killed and reaped, which loses only blocks that are not reported yet.
        Raise what the first failing worker raised, or Stopped after stop_after_blocks() or if workers keep dying.
        """
        count, looked = len(self._queue), 0.0
        try:
            for _ in range(min(self._size, count)):
                self.workers.add(WorkerHandle(self._first_message))
            # Do not wait for a worker that is still starting when no block is left.
            while self.workers and (self._queue or any(worker.blocks for worker in self.workers)):
                by_child = {worker.child: worker for worker in self.workers}
                for child in wait_for(by_child, TICK_SECONDS):
                    yield from self._hear(by_child[child])
                if time.monotonic() - looked >= TICK_SECONDS:  # reports may arrive a thousand times per second
                    looked = time.monotonic()
                    for worker in self.workers:
                        worker.kill_if_stuck()
                yield None
        finally:
            for worker in self.workers:
                worker.child.end()
            self.workers.clear()
        if self._queue:
            left = f"stopped after the current blocks, {len(self._queue)} of {count} are left"
            raise Stopped(f"SIGUSR1: {left}; completed blocks are kept; run the same command again to resume")

    def _hear(self, worker: WorkerHandle) -> Iterator[Json]:
        messages = worker.child.receive()
        if messages is None:
            self.workers.remove(worker)
            if self._died(worker) and self._queue and not _ending:
                self.workers.add(WorkerHandle(self._first_message))
            return
        for message in messages:
            if "report" in message:
                worker.blocks.remove(message["report"]["block"])
                self._idle_deaths = 0
                self._journal.append(message["report"].pop("line").encode())
                yield message["report"]
            else:
                worker.child.send(self.order(worker))

    def order(self, worker: WorkerHandle) -> Json | None:
        """Return the worker's next order, or None. Then it ends after its blocks, if `run` does not kill it before."""
        block = None if _ending else self._queue.take(worker)
        if block is None:
            return None
        worker.blocks.append(block)
        return {"block": block, "poison": self._poison}

    def _died(self, worker: WorkerHandle) -> bool:
        """Put a dead worker's blocks back into the queue. An image that killed STRIKES decoders becomes a reject.

        Returns:
            Whether the worker died unexpectedly.
        """
        if worker.child.dismissed and not worker.blocks:  # how it exits depends on the user's code
            worker.child.end()
            return False
        heartbeat = worker.child.heartbeat
        row, status = heartbeat.decoding, worker.child.exit_status()
        if row is None and (status in READER_CRASHES or status >= 0):  # a dataset may end its process
            row = heartbeat.reading
        worker.child.end()
        self._queue.put_back(worker, worker.blocks)
        if row is None or (status in KILLED and not worker.limit_passed):
            self._idle_deaths += 1
            if self._idle_deaths > self._size + STRIKES:
                if status not in KILLED and (functions := self._user_functions()):
                    raise user_death(functions, status)
                advice = "pass fewer --workers if memory is short" if status in KILLED else "see the messages above"
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
