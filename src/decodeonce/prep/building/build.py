"""Make the plan of a build, and build a store in one call: plan, decode, finish."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable
from dataclasses import replace

from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import quoted
from decodeonce.prep.building.finish import finish
from decodeonce.prep.building.free_space import check_free_space, find_storage, space_needed
from decodeonce.prep.building.output_dir import check_output_dir, failure_of, is_built, reserve_shards, with_paired
from decodeonce.prep.building.plan import (
    NoPlanError,
    Plan,
    check_expected,
    check_matches_plan,
    checked_listing,
    plan_content,
    read_plan,
    with_moved_source,
    write_plan,
)
from decodeonce.prep.building.pool import Progress, WorkSettings, work
from decodeonce.prep.listing import Listing
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import Source
from decodeonce.remote import absolute
from decodeonce.store import Manifest
from decodeonce.store.files import PAGE
from decodeonce.store.layout import Json, missing_advice


def make_plan(source: Source, out: str | os.PathLike[str], recipe: Recipe, expect: int | None = None) -> Plan:
    """Scan a source, assign every sample to a row, and reserve the space of the shards.

    If `out` already has a plan for the same source, recipe and decoders, return that plan.

    Args:
        source: The images and their labels.
        out: Folder of the store.
        recipe: The settings that decide the store's bytes.
        expect: Required number of images in the source, rejects included. None: any number.

    Returns:
        The plan, which is also written to `out`.

    Raises:
        BuildError: `out` has a different plan, a finished store or other files; the source does not list `expect`
            images, or no image; or there is too little free space.

    Example:
        >>> plan = make_plan(open_folder("imagenet/val"), Path("small.store"), Recipe(height=64, width=64))
        >>> plan.count
        16
    """
    paths, recipe = BuildPaths(out), with_paired(recipe, source)
    check_output_dir(paths, source)
    decoders = decoder_versions(recipe.container)
    plan = _plan_if_unchanged(paths, source, recipe.facts(decoders)) if paths.plan.exists() else None
    if plan is None:
        listing = checked_listing(source, expect)
        plan = _plan_for(paths, source, listing, plan_content(source, listing, recipe, decoders))
    elif expect is not None:
        check_expected(source, plan.candidates, len(plan.classes), expect)
    reserve_shards(plan)
    return plan


def _plan_if_unchanged(paths: BuildPaths, source: Source, recipe: Json) -> Plan | None:
    """Return the plan if the source's fingerprint is still the same, so that an archive is indexed once."""
    plan = read_plan(paths)
    found = {"kind": source.kind, "root": absolute(source.root), "fingerprint": source.fingerprint()}
    same = found["fingerprint"] is not None and found == {key: plan.content["source"][key] for key in found}
    return plan if same and plan.content["recipe"] == recipe else None


def _plan_for(paths: BuildPaths, source: Source, listing: Listing, content: Json) -> Plan:
    """Return the plan in OUT if it matches the listing. If there is none, write one."""
    begun = paths.journals.is_dir()  # before the plan is looked for, which is published first
    if not paths.plan.exists():
        check_output_dir(paths, source)  # again, because another process may have finished the store meanwhile
        if begun:
            advice = f"{missing_advice(paths.build)}remove {quoted(paths.root)} and build again"
            raise BuildError(f"{paths.plan}: missing, although this build has begun; {advice}")
        _check_space(Plan(paths, content))
        if (written := write_plan(paths, listing, content)) is not None:
            return written
    plan = read_plan(paths)  # of an earlier call or another process
    check_matches_plan(plan, listing, content)
    if all(plan.content["source"][key] == content["source"][key] for key in ("root", "arguments")):
        return plan
    return with_moved_source(plan, content)


def _check_space(plan: Plan) -> None:
    """Raise BuildError if there is too little space for a build. Warn if its tasks may disturb each other on NFS."""
    storage = find_storage(plan.paths.root)
    need = space_needed(plan)
    reserved = sum(path.stat().st_blocks << 9 for path in plan.paths.root.glob("images-*"))  # maybe by another process
    check_free_space(plan.paths.root, storage, replace(need, bytes=need.bytes - reserved))
    if storage.kind == "NFS":
        _warn_of_shared_pages(plan)


def _warn_of_shared_pages(plan: Plan) -> None:
    # NFS clients write back whole pages: two nodes that write to one page may undo each other's bytes. Direct writes
    # bypass the page cache, but only whole pages of 4 KiB are written that way. If blocks fill whole pages, their other
    # writes share none, unless the kernel's pages are larger: 64 KiB on some aarch64 machines.
    block_bytes = plan.blocks.block_rows * plan.recipe.row_bytes
    written_alone = block_bytes if mmap.PAGESIZE <= PAGE else plan.recipe.row_bytes
    if written_alone % PAGE:
        logging.getLogger("decodeonce").warning(
            "%s: on NFS, and blocks of %d bytes share pages; decode on one node only, or choose a --size whose rows "
            "fill whole pages (a multiple of 64 does)",
            plan.paths.root,
            block_bytes,
        )


def plan_unless_built(
    source: Source, out: str | os.PathLike[str], recipe: Recipe, expect: int | None = None
) -> Plan | None:
    """Make the plan as `make_plan` does, unless `out` already is the finished store.

    Args:
        source: The images and their labels.
        out: Folder of the store.
        recipe: The settings that decide the store's bytes.
        expect: Required number of images in the source, rejects included. None: any number.

    Returns:
        The plan, or None if `out` is the finished store of this source and recipe.

    Raises:
        BuildError: As `make_plan` and `is_built`.
        StoreError: `out` is a damaged store.

    Example:
        >>> plan = plan_unless_built(open_imagenet("imagenet"), Path("train.store"), Recipe(shuffle_seed=0))
        >>> plan is None  # because train.store is finished
        True
    """
    paths = BuildPaths(out)
    if not paths.manifest.exists():
        try:
            return make_plan(source, out, recipe, expect)
        except (BuildError, Stopped, OSError) as error:
            if not paths.manifest.exists():  # otherwise another process has finished the build
                raise failure_of(error, paths, planned=False) from None
    is_built(source, out, recipe, expect)
    return None


def build(
    source: Source,
    out: str | os.PathLike[str],
    recipe: Recipe,
    how: WorkSettings | None = None,
    progress: Callable[[Progress], None] | None = None,
    expect: int | None = None,
) -> Manifest:
    """Build a store from a source's images: plan, decode and finish.

    If an earlier call was stopped at any moment, the same call resumes it. If `out` already is the finished store,
    nothing is decoded. Concurrent builds of the same `out` produce the same bytes.

    Args:
        source: The images and their labels.
        out: Folder of the store.
        recipe: The settings that decide the store's bytes.
        how: Number of worker processes, and what to do with rejects. Default: `WorkSettings()`.
        progress: Called after each block, and at least once per second.
        expect: Required number of images in the source, rejects included. None: any number.

    Returns:
        The manifest of the finished store.

    Raises:
        BuildError: The build cannot continue until something changes; the text says what.
        Stopped: The build stopped early. Completed blocks are kept: make the same call again.

    Example:
        >>> source, recipe = open_imagenet("imagenet", split="val"), Recipe(height=64, width=64)
        >>> manifest = build(source, Path("small.store"), recipe, WorkSettings(workers=2))
        >>> manifest.count, manifest.shape
        (16, (64, 64, 3))
    """
    how = how or WorkSettings()
    if (plan := plan_unless_built(source, out, recipe, expect)) is not None:
        work(out, how, progress, plan)
        del plan  # on NFS, its mapped files would keep a name in .build
    try:
        return finish(out, how.max_bad)
    except NoPlanError as error:  # of another process, whose store.json this node does not see yet
        raise failure_of(error, BuildPaths(out), planned=False) from None
