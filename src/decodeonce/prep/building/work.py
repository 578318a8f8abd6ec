"""The second step of a build: a task decodes its share of the blocks, possibly next to other tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from decodeonce.errors import BuildError, Stopped
from decodeonce.host import usable_cores
from decodeonce.prep.building.blocks import overlap
from decodeonce.prep.building.journal import Journals
from decodeonce.prep.building.max_bad import Allowance, reject_error
from decodeonce.prep.building.plan import Plan, read_plan, removed_error
from decodeonce.prep.building.pool import BlockQueue, WorkerPool, WorkerSettings, block_spans
from decodeonce.prep.building.status import done_rejects
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import OnBad, check_choice, differences
from decodeonce.store import StorePaths
from decodeonce.store.durable import make_folder


@dataclass(frozen=True)
class Progress:
    """The progress of a task. Rows count once they are durable.

    Args:
        rows: Completed rows of the task's share.
        total_rows: Rows of the task's share.
        new_rows: Rows completed by this run.
        bytes: Bytes written by this run.
        rejects: Rejects found when planning and in the task's share.
    """

    rows: int
    total_rows: int
    new_rows: int
    bytes: int
    rejects: int


@dataclass(frozen=True)
class Work:
    """How to decode the blocks of a build.

    Args:
        workers: Number of worker processes. None (default): one per usable core.
        task: Index of this task, 0 (default) to `tasks - 1`.
        tasks: Number of tasks that share the build. Default: 1.
        max_bad: Maximum number of rejects in the whole build: a percentage of all images, "0.1%" by default, or a
            number such as "25".
        on_bad: What to do with an image that cannot be decoded. "reject" (default): record it and continue; "fail":
            stop the build.

    Raises:
        ValueError: If a value is out of range.
    """

    workers: int | None = None
    task: int = 0
    tasks: int = 1
    max_bad: str = "0.1%"
    on_bad: OnBad = "reject"

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}, expected at least 1")
        if not 0 <= self.task < self.tasks:
            raise ValueError(f"task is {self.task} of {self.tasks}, expected 0 to {self.tasks - 1}")
        check_choice("on_bad", self.on_bad, OnBad)
        Allowance.parse(self.max_bad)

    @property
    def allowance(self) -> Allowance:
        """The limit that `max_bad` sets."""
        return Allowance.parse(self.max_bad)


def work(out: Path, how: Work | None = None, progress: Callable[[Progress], None] | None = None) -> None:
    """Decode the blocks of one task's share that are not done yet.

    It is safe to kill this at any moment, to run it again, and to run it twice at once: two processes that decode the
    same share write the same bytes. A task reads only its own share of plan and journals, so its startup time does not
    grow with the store. If the store is already finished, there is nothing to do.

    Args:
        out: Folder of the planned store.
        how: Share, number of workers, and limits on rejects. Default: `Work()`, the whole store.
        progress: Called about once per second.

    Raises:
        Stopped: Make the same call again. A file system failed temporarily, workers keep dying, or SIGUSR1 arrived.
        BuildError: The build cannot continue until something changes. For example, an image is missing, or the rejects
            of the plan and of this share exceed `max_bad`. (`finish` checks the rejects of all shares.)
    """
    paths = StorePaths(out)
    if paths.manifest.exists():
        return
    try:
        plan = read_plan(paths)
        _check_decoders(plan)
        make_folder(paths.journals)  # without locks, another node may have removed it while it wrote the same plan
        _Task(plan, how or Work()).run(progress or (lambda done: None))
    except (BuildError, Stopped, OSError) as error:
        if not paths.manifest.exists():
            if isinstance(error, OSError) and (stopped := removed_error(error, out)):
                raise stopped from None
            raise
        logging.getLogger("decodeonce").warning("%s: another process finished this build; nothing left to do", out)


def _check_decoders(plan: Plan) -> None:
    planned = plan.facts["recipe"]["decoders"]
    found = decoder_versions(plan.recipe.container)
    if found != planned:
        raise BuildError(
            f"the installed decoders differ from the plan's: {'; '.join(differences(found, planned))}; "
            "install the plan's versions on every node, or remove OUT and plan again"
        )


class _Task:
    """A task's share: its completed rows, by any process, and its rejects."""

    def __init__(self, plan: Plan, how: Work) -> None:
        self._plan, self._how = plan, how
        self._share = share = plan.blocks.of_task(how.task, how.tasks)
        journals = Journals(plan.paths.journals, lambda task, tasks: overlap(share, plan.blocks.of_task(task, tasks)))
        done = [block for block in share if block in journals]
        todo = [block for block in share if block not in journals]
        self._rows_done, self._new_rows, self._bytes = self._rows(done), 0, 0
        known = done_rejects(plan, journals, done)
        self._rejects = plan.rejected + len(known)
        self._first = str((known or plan.rejects)[0]) if self._rejects else ""
        self._pool = WorkerPool(
            WorkerSettings(str(plan.paths.root), how.task, how.tasks, fail_on_bad=how.on_bad == "fail"),
            how.workers or usable_cores(),
            BlockQueue(todo, block_spans(plan, todo)),
            {block: journals.round(block) for block in todo},
        )

    def run(self, progress: Callable[[Progress], None]) -> None:
        """Decode the missing blocks; raises as `work`."""
        if self._how.on_bad == "fail" and self._first:
            raise reject_error(self._first)
        self._check_rejects()
        total = self._rows(self._share)
        for done in chain([None], self._pool.run()):
            if done is not None:
                self._rows_done, self._new_rows = self._rows_done + done["rows"], self._new_rows + done["rows"]
                self._bytes += done["bytes"]
                self._rejects, self._first = self._rejects + done["rejects"], self._first or done["first_reject"]
                self._check_rejects()
            progress(Progress(self._rows_done, total, self._new_rows, self._bytes, self._rejects))

    def _check_rejects(self) -> None:
        self._how.allowance.check(self._rejects, self._plan.candidates, self._first, self._plan.paths.root)

    def _rows(self, blocks: Sequence[int]) -> int:
        return sum(self._plan.blocks[block].rows for block in blocks)
