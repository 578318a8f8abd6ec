"""How far a build is, read from its plan and journals alone: from any node, while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.build.journal import Journals
from decodeonce.prep.build.plan import Plan, read_plan
from decodeonce.store import Reject, StorePaths
from decodeonce.store.manifest import read_manifest
from decodeonce.store.table import read_rejects

# Rates are taken over the last of these many seconds.
WINDOW = 600.0
# A task whose share is not done and that has written nothing for so long counts as silent: a block takes seconds.
SILENT_AFTER = 300.0


@dataclass(frozen=True)
class TaskStatus:
    """A task that has begun: its share, `blocks` of which `blocks_done` are done, by whomever; where it ran last.

    `seconds_quiet` is the time since it last wrote, `rows_per_s` its rate of late; `state` is "done", "working" or,
    where it has been quiet for long, "silent": stopped, killed, or on a node that is no more.
    """

    task: int
    tasks: int
    host: str
    blocks: int
    blocks_done: int
    rows_per_s: float
    seconds_quiet: float
    state: str


@dataclass(frozen=True)
class Status:
    """Blocks and planned rows done so far, by whom and how fast; `rejects` includes the plan's.

    `seconds_left` is None while nothing is being done.
    """

    finished: bool
    blocks: int
    blocks_done: int
    rows: int
    rows_done: int
    rows_per_s: float
    seconds_left: float | None
    tasks: list[TaskStatus]
    rejects: list[Reject]


def done_rejects(plan: Plan, journals: Journals, blocks: Iterable[int]) -> list[Reject]:
    """The rejects among those of these blocks that are done."""
    return [
        Reject(plan.entry(row).text, reason, "rejected")
        for record in journals.records(block for block in blocks if block in journals)
        for row, reason in record.rejects
    ]


def read_status(out: Path) -> Status:
    """The status of the build or finished store at `out`; BuildError where there is neither."""
    paths = StorePaths(out)
    if paths.manifest.exists():
        manifest = read_manifest(paths.manifest)
        blocks = -(-manifest.count // manifest.block_rows)
        rejects = [reject for reject in read_rejects(paths.rejects) if reject.action == "rejected"]
        return Status(True, blocks, blocks, manifest.count, manifest.count, 0.0, None, [], rejects)
    try:
        return _Unfinished(read_plan(paths), Journals(paths.journals), time.time()).status()
    except (BuildError, FileNotFoundError):
        if not paths.manifest.exists():
            raise
        return read_status(out)  # it was finished meanwhile


class _Unfinished:
    def __init__(self, plan: Plan, journals: Journals, now: float) -> None:
        self._plan, self._journals, self._now = plan, journals, now
        self._rates = self._find_rates()

    def status(self) -> Status:
        plan, done = self._plan, self._journals.blocks()
        rows_done = sum(plan.blocks[block].rows for block in done)
        rate = sum(self._rates.values())
        return Status(
            finished=False,
            blocks=len(plan.blocks),
            blocks_done=len(done),
            rows=plan.count,
            rows_done=rows_done,
            rows_per_s=rate,
            seconds_left=(plan.count - rows_done) / rate if rate else None,
            tasks=self._tasks(),
            rejects=plan.rejects + done_rejects(plan, self._journals, range(len(plan.blocks))),
        )

    def _find_rates(self) -> dict[Path, float]:
        """Rows a second of each journal, over the last WINDOW or since the build's first block, if that is later.

        Clocks jump, and those of nodes differ: a block that is done in the future says nothing.
        """
        times = [(block, path, at) for block, path, at in self._journals.times() if at <= self._now]
        began = max(self._now - WINDOW, min((at for _, _, at in times), default=self._now))
        rows = dict.fromkeys(self._journals.writers, 0)
        for block, path, at in times:
            rows[path] += self._plan.blocks[block].rows if at >= began else 0
        return {path: count / max(self._now - began, 1.0) for path, count in rows.items()}

    def _tasks(self) -> list[TaskStatus]:
        journals: dict[tuple[int, int], list[Path]] = {}
        for path, writer in self._journals.writers.items():
            journals.setdefault((writer.tasks, writer.task), []).append(path)
        return [self._task(task, tasks, paths) for (tasks, task), paths in sorted(journals.items())]

    def _task(self, task: int, tasks: int, paths: list[Path]) -> TaskStatus:
        share = self._plan.blocks.of_task(task, tasks)
        done = sum(block in self._journals for block in share)
        wrote, last = max((path.stat().st_mtime, path) for path in paths)
        quiet = max(0.0, self._now - wrote)
        return TaskStatus(
            task=task,
            tasks=tasks,
            host=self._journals.writers[last].host,
            blocks=len(share),
            blocks_done=done,
            rows_per_s=sum(self._rates[path] for path in paths),
            seconds_quiet=quiet,
            state="done" if done == len(share) else "silent" if quiet > SILENT_AFTER else "working",
        )
