"""The middle step of a build: a task decodes its blocks, beside whoever else is at the build."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

from decodeonce.errors import BuildError, Stopped
from decodeonce.host import usable_cores
from decodeonce.prep.build.block_queue import block_spans
from decodeonce.prep.build.blocks import overlap
from decodeonce.prep.build.journal import Journals, Writer
from decodeonce.prep.build.max_bad import Allowance
from decodeonce.prep.build.plan import Plan, read_plan, removed
from decodeonce.prep.build.status import done_rejects
from decodeonce.prep.build.worker_pool import Pool, WorkerSettings
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import differences
from decodeonce.store import StorePaths

# A look at others' journals, some round trips of a parallel file system, may take this share of the time.
LOOKING = 0.01
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Progress:
    """How far a task is, in durable rows; `new_rows` and `bytes` are this run's, rejects the plan's and the task's."""

    rows: int
    total_rows: int
    new_rows: int
    bytes: int
    rejects: int


@dataclass(frozen=True)
class Work:
    """How to do a build's blocks: share `task` of `tasks`, on `workers` processes (default: usable cores)."""

    workers: int | None = None
    task: int = 0
    tasks: int = 1
    max_bad: str = "0.1%"
    on_bad: str = "reject"

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}, expected at least 1")
        if not 0 <= self.task < self.tasks:
            raise ValueError(f"task is {self.task} of {self.tasks}, expected 0 to {self.tasks - 1}")
        if self.on_bad not in ("reject", "fail"):
            raise ValueError(f"on_bad is {self.on_bad!r}, expected reject or fail")
        Allowance.parse(self.max_bad)

    @property
    def allowance(self) -> Allowance:
        """The parsed `max_bad`."""
        return Allowance.parse(self.max_bad)


def work(out: Path, how: Work | None = None, progress: Callable[[Progress], None] | None = None) -> None:
    """Do a task's blocks that no journal has done; safe to kill at any moment, to run twice, and to run again.

    Only the task's own share of plan and journals is read, so a task's start does not grow with the whole; its own
    rejects, with the plan's, must not be more than `max_bad` allows of the whole, and finish counts them all. What
    other processes do of the share meanwhile is left to them; where one finishes the build, there is no more to do.
    Raises Stopped where the same call should simply be made again (a file system's passing error, a source file gone,
    or pool.end_with_blocks()), BuildError where something must change first. `progress` is called about once a second.
    """
    paths = StorePaths(out)
    if paths.manifest.exists():
        return
    try:
        plan = read_plan(paths)
        _check_decoders(plan)
        _Task(plan, how or Work()).run(progress or (lambda done: None))
    except (BuildError, Stopped, OSError) as error:
        if not paths.manifest.exists():
            if isinstance(error, OSError) and (stopped := removed(error, out)):
                raise stopped from None
            raise
        _warn("%s: another process has finished this build: there is no more to do", out)


def _warn(text: str, *values: object) -> None:
    logging.getLogger("decodeonce").warning(text, *values)


def _check_decoders(plan: Plan) -> None:
    planned = plan.facts["recipe"]["decoders"]
    found = decoder_versions(plan.recipe.container)
    if found != planned:
        raise BuildError(
            f"the decoders here are not the plan's: {'; '.join(differences(found, planned))}; "
            "install the plan's versions on every node, or remove OUT and plan again"
        )


class _Task:
    """A task's share: what of it is done, by whomever, and what was found on the way."""

    def __init__(self, plan: Plan, how: Work) -> None:
        self._plan, self._how = plan, how
        self._mine = mine = plan.blocks.of_task(how.task, how.tasks)
        self._journals = Journals(
            plan.paths.journals, lambda task, tasks: overlap(mine, plan.blocks.of_task(task, tasks))
        )
        self._todo = [block for block in mine if block not in self._journals]
        self._rows_done, self._new, self._written = self._rows(mine) - self._rows(self._todo), 0, 0
        known = done_rejects(plan, self._journals, [block for block in mine if block in self._journals])
        self._rejects = plan.rejected + len(known)
        self._first = str((known or plan.rejects)[0]) if self._rejects else ""
        self._next_look, self._told = 0.0, False
        self._pool = Pool(
            WorkerSettings(plan.paths.root, how.task, how.tasks, fail_on_bad=how.on_bad == "fail"),
            workers=how.workers or usable_cores(),
            rounds={block: self._journals.round(block) for block in self._todo},
            spans=block_spans(plan, self._todo),
        )

    def run(self, progress: Callable[[Progress], None]) -> None:
        """Do what is not done; raises as `work`."""
        if self._how.on_bad == "fail" and self._first:
            raise BuildError(f"{self._first}; mend or remove it, or build with --on-bad reject")
        self._check_rejects()
        total = self._rows(self._mine)
        for answer in self._pool.run(self._todo):
            if answer is not None:
                self._rows_done, self._new = self._rows_done + answer["rows"], self._new + answer["rows"]
                self._written += answer["bytes"]
                self._rejects, self._first = self._rejects + answer["rejects"], self._first or answer["first_reject"]
                self._check_rejects()
            if time.monotonic() >= self._next_look:
                self._look_at_others()
            progress(Progress(self._rows_done, total, self._new, self._written, self._rejects))
        self._look_at_others()

    def _look_at_others(self) -> None:
        """Leave to other processes what they have done; the first time that there are any, say so."""
        began = time.monotonic()
        try:
            others = self._journals.look(self._is_own)
        except FileNotFoundError:
            raise Stopped(f"{self._plan.paths.root}: the build was finished, or removed, by another process") from None
        if others:
            left = self._pool.leave(self._journals)
            known = done_rejects(self._plan, self._journals, left)
            self._rows_done, self._rejects = self._rows_done + self._rows(left), self._rejects + len(known)
            self._first = self._first or (str(known[0]) if known else "")
            self._check_rejects()
        if others and not self._told:
            self._told = True
            self._pool.part_ways()
            _warn(
                "%s: process %d on %s is building here, too: both go on, each leaves out what the other has done, and "
                "both end in the same bytes",
                self._plan.paths.root,
                others[0].pid,
                others[0].host,
            )
        ended = time.monotonic()
        self._next_look = ended + max(LOOK_SECONDS, (ended - began) / LOOKING)

    def _is_own(self, writer: Writer) -> bool:
        return writer.pid in self._pool.hired and writer.host == gethostname()

    def _check_rejects(self) -> None:
        self._how.allowance.check(self._rejects, self._plan.candidates, self._first, self._plan.paths.root)

    def _rows(self, blocks: Sequence[int]) -> int:
        return sum(self._plan.blocks[block].rows for block in blocks)
