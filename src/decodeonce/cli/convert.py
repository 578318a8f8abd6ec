"""`prep convert`: stores to a store."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce.cli import parse
from decodeonce.cli.build import Filter, Format, Out, Workers, check_alone, say_built
from decodeonce.cli.inspect import ClassOption, RowsOption, SourceOption, selection
from decodeonce.cli.output import say
from decodeonce.formatting import counted

if TYPE_CHECKING:
    from decodeonce.store import Manifest


class Sort(str, Enum):
    class_ = "class"
    source = "source"


def convert(
    stores: Annotated[list[Path], typer.Argument(help="Finished stores.", metavar="IN")],
    out: Out,
    container: Annotated[Format | None, typer.Option("--format", help="What the shards are. (default: IN's)")] = None,
    shard_size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Bytes of a shard. (default: as IN was built)")
    ] = None,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="Fewer pixels of a row: 128, or HxW.")] = None,
    resize_filter: Annotated[
        Filter | None, typer.Option("--filter", help="How to resize. (default: as IN was built)")
    ] = None,
    names: ClassOption = None,
    source: SourceOption = None,
    rows: RowsOption = None,
    sort: Annotated[Sort | None, typer.Option(help="Order the rows by label, or by source. (default: as IN)")] = None,
    shuffle_seed: Annotated[
        str | None, typer.Option(metavar="N", help="Permute the rows: a number. (default: none)")
    ] = None,
    workers: Workers = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made; write nothing.")] = False,
) -> None:
    """Make a store of stores: other shards, fewer pixels, some of the rows, several joined; run it again after a kill.

    Every row is checked on its way. Rows and --rows count through all IN; classes of one name become one.
    """
    height_width = parse.picture_size(size) if size is not None else None
    shard_bytes = parse.byte_size(shard_size) if shard_size is not None else None
    seed = parse.shuffle_seed(shuffle_seed or "none")
    selected = selection(names, source, rows)
    check_alone()
    from decodeonce.cli.progress import build_progress
    from decodeonce.prep.build import finish, is_built
    from decodeonce.prep.build.max_bad import Allowance
    from decodeonce.prep.convert.convert import Conversion, open_conversion
    from decodeonce.prep.convert.convert import convert as convert_stores

    try:
        conversion = Conversion(
            container=container.value if container else None,
            shard_size=shard_bytes,
            size=height_width,
            filter=resize_filter.value if resize_filter else None,
            selection=selected,
            sort=sort.value if sort else None,
            shuffle_seed=seed if isinstance(seed, int) else None,
        )
        made_of, recipe = open_conversion(stores, out, conversion)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
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
