"""`prep convert`: stores to a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce.cli import parse
from decodeonce.cli.build import check_alone, say_built
from decodeonce.cli.options import ClassOption, DryRun, MatchOption, Out, RowsOption, Workers, option, selection
from decodeonce.cli.output import say
from decodeonce.formatting import counted
from decodeonce.prep.recipe import Filter, Sort
from decodeonce.store.layout import ContainerName

if TYPE_CHECKING:
    from decodeonce.store import Manifest


def convert(
    stores: Annotated[list[Path], typer.Argument(help="Finished stores.", metavar="IN")],
    out: Out,
    container: Annotated[
        ContainerName | None, option("Format of the shards. (default: as IN)", flag="--format")
    ] = None,
    shard_size: Annotated[str | None, option("Size of a shard. (default: as IN was built)", "BYTES")] = None,
    size: Annotated[str | None, option("Resize rows to fewer pixels: 128, or HxW.", "SIZE")] = None,
    resize_filter: Annotated[
        Filter | None, option("Filter for resizing. (default: as IN was built)", flag="--filter")
    ] = None,
    names: ClassOption = None,
    match: MatchOption = None,
    rows: RowsOption = None,
    sort: Annotated[Sort | None, option("Order the rows by label, or by source. (default: as IN)")] = None,
    shuffle_seed: Annotated[str | None, option("Seed to shuffle rows with. (default: none)", "N")] = None,
    workers: Workers = None,
    dry_run: DryRun = False,
) -> None:
    """Make a store of stores: other shards, fewer pixels, some of the rows, several joined; run it again after a kill.

    Every row is checked on its way. Rows and --rows count through all IN; classes of one name become one.
    """
    height_width = parse.row_size(size) if size is not None else None
    shard_bytes = parse.byte_size(shard_size) if shard_size is not None else None
    seed = parse.shuffle_seed("none" if shuffle_seed is None else shuffle_seed)
    selected = selection(names, match, rows)
    check_alone()
    from decodeonce.cli.progress import build_progress
    from decodeonce.prep.build import finish, is_built
    from decodeonce.prep.build.max_bad import Allowance
    from decodeonce.prep.convert.convert import Conversion, open_conversion
    from decodeonce.prep.convert.convert import convert as convert_stores

    with parse.usage_errors():
        conversion = Conversion(
            container=container,
            shard_size=shard_bytes,
            size=height_width,
            filter=resize_filter,
            selection=selected,
            sort=sort,
            shuffle_seed=seed,
        )
        made_of, recipe = open_conversion(stores, out, conversion)
    if dry_run:
        from decodeonce.cli.dryrun import planned_text

        planned = planned_text(made_of, recipe, sum(1 for _ in made_of.chosen.unsorted()))
        return say(f"{planned}; nothing was written")
    if is_built(made_of, out, recipe):
        finish(out, Allowance.parse("0"))  # which clears up where one was killed
        return say_built(out)
    with build_progress() as progress:
        manifest = convert_stores(stores, out, conversion, workers=workers, progress=progress)
    _say_finished(out, manifest)


def _say_finished(out: Path, manifest: Manifest) -> None:
    height, width, channels = manifest.shape
    say(
        f"{out}: {counted(manifest.count, 'row')} of {height}x{width}x{channels} in "
        f"{counted(len(manifest.shards), f'{manifest.container} shard')}, "
        f"{counted(len(manifest.classes), 'class', 'classes')}"
    )
