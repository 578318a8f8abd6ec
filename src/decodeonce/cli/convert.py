"""`prep convert`: write one or more stores as a new store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli import command
from decodeonce.cli.build import BuildRequest, check_alone, say_dry_run, say_outcome
from decodeonce.cli.command import ClassOption, DryRun, MatchOption, Out, RowsOption, Workers, option
from decodeonce.cli.output import build_progress
from decodeonce.formatting import duration_text
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.recipe import Filter, Sort
from decodeonce.store.layout import FORMS_TEXT, ContainerName, PixelsName


def convert(
    stores: Annotated[list[Path], typer.Argument(help="Finished stores.", metavar="IN")],
    out: Out,
    container: Annotated[
        ContainerName | None, option("File format of the shards. (default: that of IN)", flag="--format")
    ] = None,
    shard_size: Annotated[
        str | None, option("Limit each shard to this size, such as 10GB. (default: that of IN)", "BYTES")
    ] = None,
    size: Annotated[
        str | None, option("Resize rows to fewer pixels: 128, or HxW such as 96x128. (default: no resizing)", "SIZE")
    ] = None,
    resize_filter: Annotated[
        Filter | None, option("Filter for resizing. (default: that of IN)", flag="--filter")
    ] = None,
    pixels: Annotated[PixelsName | None, option(f"How pixels are stored: {FORMS_TEXT}. (default: that of IN)")] = None,
    names: ClassOption = None,
    match: MatchOption = None,
    rows: RowsOption = None,
    sort: Annotated[
        Sort | None, option("Sort the rows. class: by label; source: by source name. (default: the order of IN)")
    ] = None,
    shuffle_seed: Annotated[str | None, option("Shuffle the rows with this seed. (default: none)", "N")] = None,
    workers: Workers = None,
    dry_run: DryRun = False,
) -> None:
    """Convert stores to a new store: reshard, downscale, filter, sort or merge rows.

    Every row is verified before it is written. Stores are merged if they have the same recipe, classes and columns;
    rows are then numbered through all IN, also for --rows. Run the same command again to resume.
    """
    height_width = command.parse_size(size) if size is not None else None
    shard_bytes = command.parse_bytes(shard_size) if shard_size is not None else None
    seed = command.parse_seed("none" if shuffle_seed is None else shuffle_seed)
    selected = command.selection(names, match, rows)
    check_alone()
    from decodeonce.prep.building.pool import WorkSettings
    from decodeonce.prep.convert.convert import Conversion, open_conversion
    from decodeonce.prep.convert.convert import convert as convert_stores

    with command.usage_errors():
        conversion = Conversion(
            container=container,
            shard_size=shard_bytes,
            size=height_width,
            filter=resize_filter,
            pixels=pixels,
            selection=selected,
            sort=sort,
            shuffle_seed=seed,
        )
        made_of, recipe = open_conversion(stores, out, conversion)
    if dry_run:
        return say_dry_run(BuildRequest(made_of, out, recipe, WorkSettings(max_bad="0"), expect=None))
    was_finished, start = BuildPaths(out).manifest.exists(), time.monotonic()
    with build_progress() as progress:
        manifest = convert_stores(stores, out, conversion, workers=workers, progress=progress)
    seconds = time.monotonic() - start
    say_outcome(out, manifest, was_finished, f" in {duration_text(seconds)}", advise=False, seconds=round(seconds, 3))
