"""The three library calls of a build, and their sum: `make_plan`, `work`, `finish`, `build`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.host import network_file_system, usable_cores
from decodeonce.prep.allowance import Allowance
from decodeonce.prep.blocks import overlap
from decodeonce.prep.changes import changes
from decodeonce.prep.deal import block_spans
from decodeonce.prep.finish import finish
from decodeonce.prep.journal import Journals
from decodeonce.prep.plan import Listing, Plan, plan_facts, read_plan, scan, write_facts, write_plan
from decodeonce.prep.pool import Pool, WorkerSettings
from decodeonce.prep.preflight import OTHER_FILES, Need, check_room, find_storage
from decodeonce.prep.recipe import Recipe, decoder_versions, differences
from decodeonce.prep.sources import Source
from decodeonce.prep.status import done_rejects
from decodeonce.store import Manifest, StorePaths, disk
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.files import PAGE, locked, make_folder, remove_file, remove_tree, reserve, sync_folder
from decodeonce.store.manifest import read_manifest

# What may lie in an OUT that a killed build left, and in its .build; anything else is somebody's own.
OURS = re.compile(r"images-\d{5}\.(npy|h5)|(labels|checksums|boxes|box_count)\.npy|(samples|rejects)\.tsv|store\.h5")
OURS_IN_BUILD = re.compile(
    r"journals|plan-(rows\.npy|names\.bin|boxes\.npy|rejects\.tsv)|plan\.json|store\.h5|\..*\.tmp|tmp.*\.h5"
)


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


def make_plan(source: Source, out: Path, recipe: Recipe) -> Plan:
    """Scan `source` and freeze which sample goes to which row of the store `out`; space is checked and reserved.

    Where a plan is there already, it is returned if source, recipe and decoders are still the same; else, and where
    `out` is a finished store or something else, BuildError says what differs.
    """
    paths = StorePaths(out)
    check_place(paths, source)
    decoders = decoder_versions(recipe.container)
    if paths.plan.exists() and (plan := _stamped_plan(paths, source, recipe.facts(decoders))) is not None:
        return plan
    listing = scan(source, recipe.boxes_a_row)
    facts = plan_facts(source, listing, recipe, decoders)
    if not facts["count"] and not paths.plan.exists():
        why = f"all {listing.candidates} candidates are rejects, first {listing.rejects[0]}" if listing.rejects else ""
        raise BuildError(f"{source.root}: no picture in it; {why or 'looked for'}; {source.found}")
    make_folder(paths.root)
    with locked(paths.root):  # of two plans at once, as of a job that was sent twice, the later one finds the other's
        check_place(paths, source)
        if paths.plan.exists():
            return _same_plan(read_plan(paths), listing, facts)
        return _new_plan(paths, listing, facts)


def _stamped_plan(paths: StorePaths, source: Source, recipe: dict[str, Any]) -> Plan | None:
    """The plan, if it needs no listing to be seen that it is still right: an archive is indexed once."""
    plan = read_plan(paths)
    found = {"kind": source.kind, "root": os.path.abspath(source.root), "stamp": source.stamp()}
    same = found["stamp"] is not None and found == {key: plan.facts["source"][key] for key in found}
    return plan if same and plan.facts["recipe"] == recipe else None


def _new_plan(paths: StorePaths, listing: Listing, facts: dict[str, Any]) -> Plan:
    _clear_leftovers(paths)
    plan = Plan(paths, facts)
    check_room(paths.root, find_storage(paths.root), need(plan))
    _warn_of_shared_pages(plan)
    make_folder(paths.journals)
    try:
        _reserve_shards(plan)
        return write_plan(paths, listing, facts)
    except OSError:  # a full disk, above all: what was reserved is room that is asked for
        if not paths.plan.exists():  # another's, where the file system has no locks
            _clear_leftovers(paths)
        raise


def check_place(paths: StorePaths, source: Source) -> None:
    """Raise BuildError where no store of this source can be made, or gone on with."""
    if paths.manifest.exists():
        raise BuildError(f"{paths.root}: a finished store is here already; choose another OUT, or remove it first")
    if paths.root.resolve().is_relative_to(source.top.resolve()):
        raise BuildError(f"{paths.root}: lies in the source, {source.top}; choose an OUT outside it")
    if not paths.root.exists():
        return
    ours = {paths.build.name, *(column.file for column in source.columns())}
    foreign = [path for path in paths.root.iterdir() if path.name not in ours and not OURS.fullmatch(path.name)]
    if paths.build.exists():
        foreign += [path for path in paths.build.iterdir() if not OURS_IN_BUILD.fullmatch(path.name)]
    if foreign or (any(paths.root.iterdir()) and not paths.build.exists()):
        found = f"{foreign[0].name} is in it" if foreign else "it is not empty"
        raise BuildError(f"{paths.root}: no unfinished build: {found}; choose another OUT")


def _clear_leftovers(paths: StorePaths) -> None:
    """Remove what a plan that was killed before its end left; `.build` last, for it says whose the rest is."""
    if paths.build.exists():
        for path in paths.root.glob("images-*"):
            remove_file(path)
        remove_tree(paths.build)


def _same_plan(plan: Plan, listing: Listing, facts: dict[str, Any]) -> Plan:
    """The plan, if these facts are its own but for the place of the source, which may have moved."""
    if plan.facts["recipe"] != facts["recipe"]:
        raise BuildError(
            f"{plan.paths.root}: planned with another recipe: "
            f"{'; '.join(differences(facts['recipe'], plan.facts['recipe']))}; go on with the plan's, or remove OUT"
        )
    planned, found = plan.facts["source"], facts["source"]
    if planned["frozen"] != found["frozen"]:
        raise BuildError(
            f"{planned['root']}: the source changed since the plan: {changes(plan, listing)}; "
            f"put it back, or remove {plan.paths.root} and build again"
        )
    if plan.facts["classes"] != facts["classes"] or planned["kind"] != found["kind"]:
        raise BuildError(
            f"{plan.paths.root}: planned as {planned['kind']} with {len(plan.facts['classes'])} classes, now "
            f"{found['kind']} with {len(facts['classes'])}, or with other names; give the same, or remove OUT"
        )
    same_place = all(planned[key] == found[key] for key in ("root", "facts"))
    return plan if same_place else write_facts(plan.paths, facts)


def need(plan: Plan) -> Need:
    """What a plan's build will write: rows, plan and journals (some 200 bytes a row, 50 a box), and files."""
    shards = plan.blocks.place(plan.count - 1)[0] + 1
    other_bytes = 200 + 50 * plan.recipe.boxes_a_row
    return Need(plan.count, plan.count * (plan.recipe.row_bytes + other_bytes), shards + OTHER_FILES)


def _warn_of_shared_pages(plan: Plan) -> None:
    """NFS clients write whole pages back: two nodes that share one may undo each other's bytes."""
    block_bytes = plan.blocks.block_rows * plan.recipe.row_bytes
    place = plan.paths.root.absolute().parent
    if block_bytes % PAGE and place.exists() and network_file_system(place) == "NFS":
        logging.getLogger("decodeonce").warning(
            "%s: on NFS, and blocks of %d bytes share pages: decode on one node only, or choose a --size whose rows "
            "fill pages (a multiple of 32 does)",
            plan.paths.root,
            block_bytes,
        )


def _reserve_shards(plan: Plan) -> None:
    blocks, suffix = plan.blocks, CONTAINERS[plan.recipe.container].suffix
    for index in range(blocks.place(plan.count - 1)[0] + 1):
        last_row = min((index + 1) * blocks.shard_rows, plan.count) - 1
        size = blocks.place(last_row)[1] + plan.recipe.row_bytes
        path = plan.paths.shard(index, suffix)
        fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if not reserve(fd, size, path):
                disk.ftruncate(fd, size)
        finally:
            os.close(fd)
    sync_folder(plan.paths.root)


def work(out: Path, how: Work | None = None, progress: Callable[[Progress], None] | None = None) -> None:
    """Do a task's blocks that no journal has done; safe to kill at any moment, to run twice, and to run again.

    Only the task's own share of plan and journals is read, so a task's start does not grow with the whole; its own
    rejects, with the plan's, must not be more than `max_bad` allows of the whole, and finish counts them all. Raises
    Stopped where the same call should simply be made again (a file system's passing error, a source file gone, or
    pool.end_with_blocks()), BuildError where something must change first. `progress` is called about once a second.
    """
    how, paths = how or Work(), StorePaths(out)
    if paths.manifest.exists():
        return
    plan = read_plan(paths)
    _check_decoders(plan)
    mine = plan.blocks.of_task(how.task, how.tasks)
    done = Journals(paths.journals, lambda task, tasks: overlap(mine, plan.blocks.of_task(task, tasks)))
    todo = [block for block in mine if block not in done]
    known = done_rejects(plan, done, mine)
    rejects, allowance = plan.rejected + len(known), how.allowance
    first = str((known or plan.rejects)[0]) if rejects else ""
    if how.on_bad == "fail" and first:
        raise BuildError(f"{first}; mend or remove it, or build with --on-bad reject")
    allowance.check(rejects, plan.candidates, first, out)
    total = sum(plan.blocks[block].rows for block in mine)
    left = sum(plan.blocks[block].rows for block in todo)
    new, written = 0, 0
    pool = Pool(
        WorkerSettings(paths.root, how.task, how.tasks, fail_on_bad=how.on_bad == "fail"),
        workers=how.workers or usable_cores(),
        rounds={block: done.round(block) for block in todo},
        spans=block_spans(plan, todo),
    )
    for answer in pool.run(todo):
        if answer is not None:
            new, written, rejects = new + answer["rows"], written + answer["bytes"], rejects + answer["rejects"]
            first = first or answer["first_reject"]
            allowance.check(rejects, plan.candidates, first, out)
        if progress is not None:
            progress(Progress(total - left + new, total, new, written, rejects))


def _check_decoders(plan: Plan) -> None:
    planned = plan.facts["recipe"]["decoders"]
    found = decoder_versions(plan.recipe.container)
    if found != planned:
        raise BuildError(
            f"the decoders here are not the plan's: {'; '.join(differences(found, planned))}; "
            "install the plan's versions on every node, or remove OUT and plan again"
        )


def build(
    source: Source,
    out: Path,
    recipe: Recipe,
    how: Work | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Manifest:
    """Plan, decode and finish in one call; the same call goes on where an earlier one was stopped, at any moment."""
    how, paths = how or Work(), StorePaths(out)
    if not _only_to_tidy(paths, source, recipe):
        make_plan(source, out, recipe)
        work(out, how, progress)
    return finish(out, how.allowance)


def _only_to_tidy(paths: StorePaths, source: Source, recipe: Recipe) -> bool:
    """Whether a finish of this very build was killed after its last decision: store.json and .build are both there."""
    if not (paths.manifest.exists() and paths.build.exists()):
        return False
    listing = scan(source, recipe.boxes_a_row)
    wanted = source.manifest_facts(recipe.facts(decoder_versions(recipe.container)), listing.digest)
    found = read_manifest(paths.manifest)
    return (found.recipe, found.source) == (wanted["recipe"], wanted["source"])
