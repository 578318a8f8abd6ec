"""The folder OUT: what may lie in it already, what a killed plan left there, and the space of its shards."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from decodeonce.errors import BuildError, add_path_to_errors
from decodeonce.formatting import counted
from decodeonce.prep.build.plan import Plan
from decodeonce.prep.build.scan import Listing, check_expected, scan
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Recipe, differences
from decodeonce.prep.sources import Source
from decodeonce.store import Manifest, StorePaths, disk, open_store
from decodeonce.store.columns import column_file
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.durable import empty_folder, remove_file, reserve, sync_folder
from decodeonce.store.locks import LOCK
from decodeonce.store.signed import canonical
from decodeonce.store.table import read_rejects

# What may lie in an OUT that a killed build left, and in its .build; anything else is somebody's own.
OURS = re.compile(
    r"images-\d{5}\.(npy|h5)|(labels|checksums|boxes|box_count|box_labels)\.npy|(samples|rejects)\.tsv|store\.h5"
)
OURS_IN_BUILD = re.compile(
    r"lock|journals|plan-(rows\.npy|names\.bin|(boxes|box-labels|column-\d+)\.npy|rejects\.tsv)|plan\.json|store\.h5"
    r"|\..*\.tmp|tmp.*\.h5"
)


def is_built(source: Source, out: Path, recipe: Recipe, expect: int | None = None) -> bool:
    """Whether `out` is the finished store of this source and recipe, with all its files; nothing is decoded for that.

    Raises BuildError, which says what differs, where it is another store, StoreError where it is damaged. The source
    is listed, unless the recipe tells already: by names, sizes and classes, not by content.
    """
    paths = StorePaths(out)
    if not paths.manifest.exists():
        return False
    if paths.part.exists():
        raise BuildError(f"{out}: a staged part of a store is here; choose another OUT, or remove it first")
    found, planned = open_store(out).manifest, recipe.facts(decoder_versions(recipe.container))
    if told := _differences(source.manifest_facts(planned, "")["recipe"], found.recipe):
        raise BuildError(_is_here(out, told))
    listing = scan(source, recipe.boxes_per_row)
    check_expected(source, listing.candidates, expect)
    wanted = source.manifest_facts(planned, listing.digest)["source"]
    if told := _differences(wanted, found.source):
        if wanted["digest"] == listing.digest != found.source.get("digest"):  # no store's that is converted
            raise BuildError(_is_here(out, f"{_others(source, listing, paths, found)} ({told})"))
        raise BuildError(_is_here(out, f"the source's {told}"))
    return True


def _others(source: Source, listing: Listing, paths: StorePaths, store: Manifest) -> str:
    """That the source lists others than the store was built of, with the counts of both."""
    gone = sum(reject.action != "kept" for reject in read_rejects(paths.rejects))
    here, there = (counted(number, "class", "classes") for number in (len(source.classes()), len(store.classes)))
    return (
        f"{source.root} lists other pictures (names, sizes, classes, boxes or values) than it was built of: "
        f"{listing.candidates} in {here}; the store has {counted(store.count, 'row')} in {there}, and {gone} became "
        "none"
    )


def _differences(wanted: dict[str, object], found: dict[str, object]) -> str:
    """What differs, as the manifest would write it."""
    return "; ".join(differences(json.loads(canonical(wanted)), found, of="store"))


def _is_here(out: Path, told: str) -> str:
    return f"{out}: a finished store is here already, not this build's: {told}; choose another OUT, or remove it first"


def check_output_dir(paths: StorePaths, source: Source) -> None:
    """Raise BuildError where no store of this source can be made, or gone on with."""
    if paths.manifest.exists():
        raise BuildError(f"{paths.root}: a finished store is here already; choose another OUT, or remove it first")
    if Path(os.path.realpath(paths.root)).is_relative_to(os.path.realpath(source.top)):
        raise BuildError(f"{paths.root}: lies in the source, {source.top}; choose an OUT outside it")
    if not paths.root.exists():
        return
    ours = {paths.build.name, *(column.file for column in source.columns()), *map(column_file, source.column_names)}
    foreign = [path for path in paths.root.iterdir() if path.name not in ours and not OURS.fullmatch(path.name)]
    if paths.build.exists():
        foreign += [path for path in paths.build.iterdir() if not OURS_IN_BUILD.fullmatch(path.name)]
    # A plan that is being made locks `.build` before it makes anything else there.
    begun = paths.build.exists() and os.listdir(paths.build) != [LOCK]
    if foreign or (not begun and {path.name for path in paths.root.iterdir()} - {paths.build.name}):
        found = f"{foreign[0].name} is in it" if foreign else "it is not empty"
        raise BuildError(f"{paths.root}: no unfinished build: {found}; choose another OUT")


def clear_leftovers(paths: StorePaths) -> None:
    """Remove what a killed plan left. `.build` is emptied last, for it says whose the rest is."""
    for path in paths.root.glob("images-*"):
        remove_file(path)
    sync_folder(paths.root)  # else a loss of power may leave shards of which nothing says whose they are
    empty_folder(paths.build, keep=LOCK)


def reserve_shards(plan: Plan) -> None:
    """Make every shard at the size of its planned rows, its space reserved if the file system can."""
    blocks, suffix = plan.blocks, CONTAINERS[plan.recipe.container].suffix
    for index in range(blocks.place(plan.count - 1)[0] + 1):
        last_row = min((index + 1) * blocks.shard_rows, plan.count) - 1
        size = blocks.place(last_row)[1] + plan.recipe.row_bytes
        path = plan.paths.shard(index, suffix)
        fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if not reserve(fd, size, path):
                with add_path_to_errors(path):
                    disk.ftruncate(fd, size)
        finally:
            disk.close(fd)
    sync_folder(plan.paths.root)
