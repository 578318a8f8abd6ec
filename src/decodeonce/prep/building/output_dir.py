"""The folder OUT: check what is already in it, reserve the space of the shards, and remove `.build` at the end."""

from __future__ import annotations

import errno
import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from decodeonce.errors import REPLACED_ERRORS, BuildError, Stopped, failure_from
from decodeonce.formatting import counted, quoted
from decodeonce.prep.building.plan import NoPlanError, Plan, checked_listing
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe, differences
from decodeonce.prep.sources.base import Source
from decodeonce.store import Manifest, disk, open_store
from decodeonce.store.columns import column_file
from decodeonce.store.files import remove_file, remove_tree, reserve, sync_folder, writing
from decodeonce.store.hashing import canonical
from decodeonce.store.layout import missing_advice
from decodeonce.store.manifest import DATA_OFFSET, read_manifest
from decodeonce.store.sharing import on_network
from decodeonce.store.writer import trim_shards

# Files that a killed build may leave in OUT and in OUT/.build. Any other file belongs to the user.
# sshfs and NFS rename a removed file that is still open.
RENAMED = r"\.(fuse_hidden|nfs)[0-9a-f]+"
OURS = re.compile(rf"images-\d{{5}}\.(npy|h5)|(labels|checksums)\.npy|(samples|rejects)\.tsv|store\.h5|{RENAMED}")
OURS_IN_BUILD = re.compile(
    r"lock|journals|plan-[0-9a-f]{8}|plan\.json|store\.h5"
    rf"|\..*\.tmp|tmp.*\.h5|{RENAMED}"
)


def is_built(source: Source, out: str | os.PathLike[str], recipe: Recipe, expect: int | None = None) -> bool:
    """Return whether `out` is the finished store of this source and recipe.

    Sources are compared by names, sizes, classes, boxes and values of columns, not by content: nothing is decoded.

    Args:
        source: The images and their labels.
        out: Folder of the store.
        recipe: The settings that decide the store's bytes.
        expect: Required number of images in the source, rejects included. None: any number.

    Returns:
        True if the finished store is there with all its files, False if `out` has no finished store.

    Raises:
        BuildError: `out` is a different store, or the source does not list `expect` images.
        StoreError: `out` is a damaged store.

    Example:
        >>> is_built(open_imagenet("imagenet"), Path("train.store"), Recipe(shuffle_seed=0))
        True
    """
    paths = BuildPaths(out)
    if not paths.manifest.exists():
        return False
    if paths.part.exists():
        raise BuildError(f"{out}: already holds a staged part of a store; choose another OUT, or remove it first")
    recipe = with_paired(recipe, source)
    found, planned = open_store(out).manifest, recipe.facts(decoder_versions(recipe.container))
    if changes := _differences(source.manifest_facts(planned, "")["recipe"], found.recipe):
        raise _different_store(paths.root, changes)
    listing = checked_listing(source, expect)
    wanted = source.manifest_facts(planned, listing.digest)["source"]
    # The digest of the listing decides, not the options.
    if changes := _differences(*({**facts, "options": None} for facts in (wanted, found.source))):
        what = f"{source.root} differs from its source in names, sizes, classes, boxes, values or kind"
        here, there = counted(listing.candidates, "image"), counted(found.count, "row")
        raise _different_store(paths.root, f"{what}: {here} here, {there} in the store; {changes}")
    return True


def with_paired(recipe: Recipe, source: Source) -> Recipe:
    """Return the recipe with what the source pairs with its images. Raise BuildError if they cannot be combined."""
    try:
        return replace(recipe, paired=source.paired)
    except ValueError as error:
        raise BuildError(f"{source.root}: {error}") from None


def _differences(wanted: dict[str, object], found: dict[str, object]) -> str:
    """List the differences between the manifest facts that a build would write and those of a store."""
    return "; ".join(differences(json.loads(canonical(wanted)), found, of="store"))


def _different_store(out: Path, changes: str) -> BuildError:
    what = f"already holds a different finished store: {changes}"
    return BuildError(f"{out}: {what}; choose another OUT, or remove it first")


def check_output_dir(paths: BuildPaths, source: Source) -> None:
    """Raise BuildError unless a store of this source can be created or resumed here."""
    if paths.manifest.exists():
        raise BuildError(f"{paths.root}: already holds a finished store; choose another OUT, or remove it first")
    if Path(os.path.realpath(paths.root)).is_relative_to(os.path.realpath(source.top)):
        raise BuildError(f"{paths.root}: is inside the source, {source.top}; choose an OUT outside it")
    if not paths.root.exists():
        return
    ours = {paths.build.name, *(column.file for column in source.columns()), *map(column_file, source.column_names)}
    found = list(paths.root.iterdir())  # before .build is looked for, which a build creates first
    foreign = [path for path in found if path.name not in ours and not OURS.fullmatch(path.name)]
    if paths.build.exists():
        foreign += [path for path in paths.build.iterdir() if not OURS_IN_BUILD.fullmatch(path.name)]
    if foreign or (found and not paths.build.exists()):
        what = f"it contains {foreign[0].name}" if foreign else "it is not empty"
        raise BuildError(f"{paths.root}: not an unfinished build: {what}; choose another OUT")


def planned_shard(plan: Plan, index: int) -> tuple[Path, int]:
    """Return the path of a shard and its size in bytes until the store is finished."""
    rows = min(plan.blocks.shard_rows, plan.count - index * plan.blocks.shard_rows)
    return plan.shard(index), DATA_OFFSET + rows * plan.recipe.row_bytes


def check_not_truncated(plan: Plan, index: int) -> None:
    """Raise BuildError if a shard was cut since it was reserved. A longer one is cut when the store is finished."""
    path, size = planned_shard(plan, index)
    found = path.stat().st_size
    if found < size:
        raise _truncated_error(plan.paths.root, path, found, size)


def _truncated_error(root: Path, path: Path, found: int, size: int) -> BuildError:
    return BuildError(
        f"{path}: {found} bytes, expected {size}: it was cut after decoding began, so rows are lost; remove {root} "
        f"and build again, or rebuild only the lost rows: run `truncate -s {size} {quoted(path)}`, finish "
        f"the build, then run `prep verify {quoted(root)}`, which names the command"
    )


def reserve_shards(plan: Plan) -> None:
    """Create every shard at its planned size, and reserve its space if the file system supports that.

    The folder of the journals is created last: once it exists, this is done. Several processes may call this at once.
    Raise BuildError if another one finishes the store meanwhile.
    """
    paths = plan.paths
    if paths.journals.is_dir():
        return
    _check_unfinished(paths)  # after the line above, because a finish writes store.json, then removes the journals
    sync_folder(paths.build)  # the process that wrote the plan may have been killed before this
    try:
        for path, size in (planned_shard(plan, index) for index in range(plan.blocks.shards)):
            with writing(path, os.O_RDWR | os.O_CREAT) as fd:  # flushed: a power loss must not truncate it
                if not reserve(fd, size, path) and os.fstat(fd).st_size < size:
                    disk.ftruncate(fd, size)
        sync_folder(paths.root)
        with suppress(FileExistsError):  # not make_folder: if the user has removed OUT, it must not come back
            disk.mkdir(paths.journals)
        sync_folder(paths.build)
    finally:
        _check_unfinished(paths)  # again, because this process may have grown its shards


def _check_unfinished(paths: BuildPaths) -> None:
    """Raise BuildError if the store is finished, after what this process added to it has been removed."""
    if paths.manifest.exists():
        clean_up(paths, read_manifest(paths.manifest))
        raise BuildError(f"{paths.root}: another process finished this build; run the same command again")


def failure_of(
    error: BuildError | Stopped | OSError, paths: BuildPaths, *, planned: bool = True
) -> BuildError | Stopped:
    """Return the error to raise: for an OSError, Stopped if a `planned` build is gone, or a file of it on a network.

    A command that makes the plan itself, so that nothing is `planned` before, is Stopped if the plan is gone.
    """
    if isinstance(error, NoPlanError) and not planned:
        return Stopped(f"{paths.plan}: another process has removed or finished this build; run the same command again")
    if not isinstance(error, OSError):
        return error
    hidden, name = missing_advice(paths.root), os.fsdecode(error.filename or paths.root)
    gone = hidden or error.errno == errno.ESTALE or on_network(paths.root) or (planned and not paths.plan.exists())
    if error.errno in REPLACED_ERRORS and gone and Path(name).is_relative_to(paths.root):
        advice = hidden or "another process removed it: "
        return Stopped(f"{name}: {error.strerror}; {advice}run the same command again")
    return failure_from(error, paths.root)


def clean_up(paths: BuildPaths, manifest: Manifest) -> None:
    """Cut the shards of a finished store to their final size, and remove `.build`."""
    trim_shards(paths, manifest)
    if paths.build.exists():
        remove_file(paths.plan)  # first, because a task that is still running checks for it before each block
        with suppress(OSError):  # not needed for a complete store; on NFS, open files of a running task stay in .build
            remove_tree(paths.build)
