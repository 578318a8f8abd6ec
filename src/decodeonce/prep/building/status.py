"""The status of a build, read from its plan and journals: from any node, also while it runs."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from decodeonce.errors import BuildError
from decodeonce.host import process_exists
from decodeonce.prep.building.journal import Author, Journals
from decodeonce.prep.building.plan import Plan, read_plan
from decodeonce.prep.paths import BuildPaths
from decodeonce.store import Reject
from decodeonce.store.manifest import read_manifest
from decodeonce.store.table import read_rejects

WINDOW = 600.0  # rates are averages over this many seconds
SILENT_AFTER = 300.0  # seconds without a new block until an unfinished task is silent; a block takes seconds

State = Literal["planned", "working", "stopped", "decoded", "finished"]
TaskState = Literal["done", "working", "stopped", "silent"]


@dataclass(frozen=True)
class TaskStatus:
    """The status of a task that has started.

    Attributes:
        task: Index of the task.
        tasks: Number of tasks.
        host: Node of the last process that wrote for this task.
        blocks: Blocks in the task's share.
        blocks_done: Completed blocks of the share, no matter which task completed them.
        rows_per_s: Recent rate.
        seconds_quiet: Seconds since the task last wrote.
        state: "stopped": it ran on this node, and no process of it is left. "silent": it has written nothing for
            SILENT_AFTER seconds, because its processes hang or were stopped on another node. Otherwise "working" or
            "done".
    """

    task: int
    tasks: int
    host: str
    blocks: int
    blocks_done: int
    rows_per_s: float
    seconds_quiet: float
    state: TaskState


@dataclass(frozen=True)
class Status:
    """The status of a build.

    Attributes:
        finished: Whether the store is finished.
        state: "planned": no task has started. "working": a task is working. "stopped": none is. "decoded": only
            `finish` is left. "finished": the store is complete.
        blocks: Planned blocks.
        blocks_done: Completed blocks.
        rows: Planned rows.
        rows_done: Rows in completed blocks.
        rows_per_s: Recent rate of all tasks.
        seconds_left: Estimated time left; None if the rate is 0.
        tasks: The tasks that have started.
        rejects: Rejects so far, including those found when planning.
        kept: Number of unusual images that were kept so far, by reason.
        expected_rejects: Rejects to expect in the whole build, if the remaining images are like the decoded ones.
    """

    finished: bool
    state: State
    blocks: int
    blocks_done: int
    rows: int
    rows_done: int
    rows_per_s: float
    seconds_left: float | None
    tasks: list[TaskStatus]
    rejects: list[Reject]
    kept: dict[str, int]
    expected_rejects: int


def read_status(out: str | os.PathLike[str]) -> Status:
    """Return the status of the build or finished store at `out`; raise BuildError if there is neither."""
    paths = BuildPaths(out)
    if paths.manifest.exists():
        manifest = read_manifest(paths.manifest)
        blocks = -(-manifest.count // manifest.block_rows)
        rejects, kept = _by_action(read_rejects(paths.rejects))
        return Status(
            True, "finished", blocks, blocks, manifest.count, manifest.count, 0.0, None, [], rejects, kept, len(rejects)
        )
    try:
        return _unfinished(read_plan(paths), Journals(paths.journals), time.time())
    except (BuildError, FileNotFoundError):
        if not paths.manifest.exists():
            raise
        return read_status(out)  # another process finished the store in the meantime


def _unfinished(plan: Plan, journals: Journals, now: float) -> Status:
    rows_done = sum(plan.blocks[block].rows for block in journals.lines)
    records = journals.records(range(len(plan.blocks)))
    rejects, kept = _by_action(plan.rejects_of(sorted(reject for record in records for reject in record.rejects)))
    tasks = _tasks(plan, journals, now)
    rate = sum(task.rows_per_s for task in tasks)
    state: State = "stopped" if tasks else "planned"
    if rows_done == plan.count:
        state = "decoded"
    elif any(task.state == "working" for task in tasks):
        state = "working"
    return Status(
        finished=False,
        state=state,
        blocks=len(plan.blocks),
        blocks_done=len(journals.lines),
        rows=plan.count,
        rows_done=rows_done,
        rows_per_s=rate,
        seconds_left=(plan.count - rows_done) / rate if rate else None,
        tasks=tasks,
        rejects=plan.rejects + rejects,
        kept=kept,
        expected_rejects=plan.expected_rejects(len(plan.rejects) + len(rejects), rows_done),
    )


def _by_action(listed: Iterable[Reject]) -> tuple[list[Reject], dict[str, int]]:
    """Return the images that were rejected, and the number of those that were kept, by reason."""
    listed = list(listed)
    kept = Counter(one.reason for one in listed if one.action == "kept")
    return [one for one in listed if one.action == "rejected"], dict(kept)


def _tasks(plan: Plan, journals: Journals, now: float) -> list[TaskStatus]:
    """Return the status of each task.

    Rates are over the last WINDOW seconds, or since the build's first block. Blocks completed in the future are
    ignored, because clocks jump and differ between nodes.
    """
    past = [(block, line) for block, line in journals.lines.items() if line.time <= now]
    began = max(now - WINDOW, min((line.time for _, line in past), default=now))
    recent = Counter[Path]()  # rows in each journal
    for block, line in past:
        recent[line.path] += plan.blocks[block].rows if line.time >= began else 0
    by_task: dict[tuple[int, int], list[Path]] = {}
    for path, author in journals.authors.items():
        by_task.setdefault((author.tasks, author.task), []).append(path)
    found = []
    for (tasks, task), paths in sorted(by_task.items()):
        share = plan.blocks.of_task(task, tasks)
        done = sum(block in journals.lines for block in share)
        wrote, last = max((path.stat().st_mtime, path) for path in paths)
        quiet = max(0.0, now - wrote)
        state: TaskState = "silent" if quiet > SILENT_AFTER else "working"
        if done == len(share):
            state = "done"
        elif not any(_may_run(journals.authors[path]) for path in paths):
            state = "stopped"
        rate = 0.0 if state == "stopped" else sum(recent[path] for path in paths) / max(now - began, 1.0)
        found.append(TaskStatus(task, tasks, journals.authors[last].host, len(share), done, rate, quiet, state))
    return found


def _may_run(author: Author) -> bool:
    """Return whether a journal's process may still run; nothing is known about processes on other nodes."""
    return author.host != socket.gethostname() or process_exists(author.pid)
