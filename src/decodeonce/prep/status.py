"""How far a build is, read from its plan and journals alone: from any node, while it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from decodeonce.prep.journal import Journals
from decodeonce.prep.plan import Plan, read_plan
from decodeonce.store import Reject, StorePaths
from decodeonce.store.manifest import read_manifest
from decodeonce.store.table import read_rejects


@dataclass(frozen=True)
class Status:
    """Blocks and planned rows done so far; `by_task` counts blocks by task number; rejects include the plan's."""

    finished: bool
    blocks: int
    blocks_done: int
    rows: int
    rows_done: int
    by_task: dict[str, int]
    rejects: list[Reject]


def done_rejects(plan: Plan, journals: Journals) -> list[Reject]:
    """The rejects among the blocks that are done."""
    return [
        Reject(plan.entry(row).text, reason, "rejected")
        for block in journals.blocks()
        for row, reason in journals.record(block).rejects
    ]


def read_status(out: Path) -> Status:
    """The status of the build or finished store at `out`; BuildError where there is neither."""
    paths = StorePaths(out)
    if paths.manifest.exists():
        manifest = read_manifest(paths.manifest)
        blocks = -(-manifest.count // manifest.block_rows)
        rejects = [reject for reject in read_rejects(paths.rejects) if reject.action == "rejected"]
        return Status(True, blocks, blocks, manifest.count, manifest.count, {}, rejects)
    plan = read_plan(paths)
    journals = Journals(paths.journals)
    done = journals.blocks()
    return Status(
        finished=False,
        blocks=len(plan.blocks),
        blocks_done=len(done),
        rows=plan.count,
        rows_done=sum(plan.blocks[block].rows for block in done),
        by_task=dict(sorted(Counter(journals.writer(block).split("-")[0] for block in done).items())),
        rejects=plan.rejects + done_rejects(plan, journals),
    )
