"""The first of the three library calls of a build, `make_plan`, and the sum of all of them, `build`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted
from decodeonce.host import network_file_system
from decodeonce.prep.build.finish import finish
from decodeonce.prep.build.free_space import OTHER_FILES, Need, check_room, find_storage
from decodeonce.prep.build.output_dir import check_place, is_built
from decodeonce.prep.build.plan import (
    Listing,
    Plan,
    check_expected,
    plan_facts,
    read_plan,
    scan,
    write_facts,
    write_plan,
)
from decodeonce.prep.build.plan_diff import changes
from decodeonce.prep.build.task import Progress, Work, work
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe, differences
from decodeonce.prep.sources import Source
from decodeonce.store import Manifest, StorePaths, disk
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.files import (
    LOCK,
    PAGE,
    empty_folder,
    locked,
    make_folder,
    naming,
    remove_file,
    reserve,
    sync_folder,
)
from decodeonce.store.layout import missing_advice
from decodeonce.store.manifest import canonical


def make_plan(source: Source, out: Path, recipe: Recipe, expect: int | None = None) -> Plan:
    """Scan `source` and freeze which sample goes to which row of the store `out`; space is checked and reserved.

    BuildError unless the source lists `expect` pictures, rejects included.

    Where a plan is there already, it is returned if source, recipe and decoders are still the same; else, and where
    `out` is a finished store or something else, BuildError says what differs.
    """
    paths = StorePaths(out)
    check_place(paths, source)
    decoders = decoder_versions(recipe.container)
    if paths.plan.exists():
        sync_folder(paths.build)  # who wrote it may have been killed before this
        if (plan := _stamped_plan(paths, source, recipe.facts(decoders))) is not None:
            check_expected(source, plan.candidates, expect)
            return plan
    listing = scan(source, recipe.boxes_a_row)
    check_expected(source, listing.candidates, expect)
    facts = plan_facts(source, listing, recipe, decoders)
    if not paths.plan.exists():
        check_listing(source, listing)
    make_folder(paths.root)
    with locked(paths.build):  # of two plans at once, as of a job that was sent twice, the later one finds the other's
        make_folder(paths.build)  # which says so where nothing can be written
        planned = paths.plan.exists()  # asked first: a finish writes store.json before it removes the plan
        check_place(paths, source)
        if planned:
            plan = read_plan(paths)
            check_same(plan, listing, facts)
            same_place = all(plan.facts["source"][key] == facts["source"][key] for key in ("root", "facts"))
            return plan if same_place else write_facts(paths, facts)
        return _new_plan(paths, listing, facts)


def check_listing(source: Source, listing: Listing) -> None:
    """Raise BuildError where a source has nothing that could be a row."""
    if not len(listing):
        tried = f"; all {listing.candidates} candidates are rejects, first "
        why = f"{tried}{listing.rejects[0]}" if listing.rejects else ""
        raise BuildError(f"{source.root}: no picture in it{why}; taken for {source.found}")


def _stamped_plan(paths: StorePaths, source: Source, recipe: dict[str, Any]) -> Plan | None:
    """The plan, if it needs no listing to be seen that it is still right: an archive is indexed once."""
    plan = read_plan(paths)
    found = {"kind": source.kind, "root": os.path.abspath(source.root), "stamp": source.stamp()}
    same = found["stamp"] is not None and found == {key: plan.facts["source"][key] for key in found}
    return plan if same and plan.facts["recipe"] == recipe else None


def _new_plan(paths: StorePaths, listing: Listing, facts: dict[str, Any]) -> Plan:
    if paths.journals.is_dir() and any(paths.journals.iterdir()):  # a plan is written before any journal
        advice = f"{missing_advice(paths.build)}remove {quoted(str(paths.root))} and build again"
        raise BuildError(f"{paths.plan}: missing, though blocks of this build are done; {advice}")
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


def _clear_leftovers(paths: StorePaths) -> None:
    """Remove what a killed plan left. `.build` is emptied last, for it says whose the rest is."""
    for path in paths.root.glob("images-*"):
        remove_file(path)
    sync_folder(paths.root)  # else a loss of power may leave shards of which nothing says whose they are
    empty_folder(paths.build, keep=LOCK)


def check_same(plan: Plan, listing: Listing, facts: dict[str, Any]) -> None:
    """Raise BuildError unless these facts are the plan's own but for the place of the source, which may have moved."""
    if plan.facts["recipe"] != facts["recipe"]:
        raise BuildError(
            f"{plan.paths.root}: planned with another recipe: "
            f"{'; '.join(differences(facts['recipe'], plan.facts['recipe']))}; go on with the plan's, or remove OUT"
        )
    planned, found = plan.facts["source"], facts["source"]
    if planned["frozen"] != found["frozen"]:
        told, out = changes(plan, listing), plan.paths.root
        if planned["root"] != found["root"]:
            raise BuildError(
                f"{out}: planned from {planned['root']} ({planned['kind']}), this is {found['root']} "
                f"({found['kind']}): {told}; give that, or remove OUT and build again"
            )
        raise BuildError(
            f"{planned['root']}: the source changed since the plan: {told}; put it back, or remove {out} and build "
            "again"
        )
    if plan.facts["classes"] != facts["classes"] or planned["kind"] != found["kind"]:
        raise BuildError(
            f"{plan.paths.root}: planned as {planned['kind']} with {len(plan.facts['classes'])} classes, now "
            f"{found['kind']} with {len(facts['classes'])}, or with other names; give the same, or remove OUT"
        )


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
                with naming(path):
                    disk.ftruncate(fd, size)
        finally:
            disk.close(fd)
    sync_folder(plan.paths.root)


def plan_unless_built(source: Source, out: Path, recipe: Recipe, expect: int | None = None) -> Plan | None:
    """`make_plan`; None where `out` is this very store, finished before or meanwhile. Raises as `is_built`, too."""
    if is_built(source, out, recipe, expect):
        return None
    try:
        return make_plan(source, out, recipe, expect)
    except (BuildError, OSError):
        if not is_built(source, out, recipe, expect):
            raise
        return None


def build(
    source: Source,
    out: Path,
    recipe: Recipe,
    how: Work | None = None,
    progress: Callable[[Progress], None] | None = None,
    expect: int | None = None,
) -> Manifest:
    """Plan, decode and finish in one call; the same call goes on where an earlier one was stopped, at any moment.

    Where `out` is this very store, finished, there is nothing to do but to complete a finish that was killed. Several
    builds of one `out` at once all go on, and end in the same bytes.
    """
    how = how or Work()
    plan = plan_unless_built(source, out, recipe, expect)
    if plan is not None:
        work(out, how, progress)
    manifest = finish(out, how.allowance)
    found = {"recipe": manifest.recipe, "source": manifest.source}
    if plan is not None and canonical(found) != canonical({key: plan.facts["manifest"][key] for key in found}):
        raise BuildError(f"{out}: removed, and built by another recipe or source, meanwhile; choose another OUT")
    return manifest
