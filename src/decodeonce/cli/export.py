"""`prep export`: write the rows of a store as image files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import decodeonce
from decodeonce.cli.options import StoreArgument, Workers, option
from decodeonce.cli.output import count_bar, say
from decodeonce.formatting import counted
from decodeonce.host import usable_cores
from decodeonce.prep.recipe import ExportForm


def export(
    store: StoreArgument,
    dest: Annotated[Path, typer.Argument(help="Folder to create.", metavar="DEST")],
    form: Annotated[
        ExportForm, option("Kind of output: folder (DEST/<class>/*.png) or webdataset (DEST/shard-*.tar).", flag="--as")
    ],
    quality: Annotated[
        int | None, option("Write JPEGs of this quality. (default: PNG, without loss)", "N", min=1, max=100)
    ] = None,
    workers: Workers = None,
    shard_rows: Annotated[
        int | None, option("Write N rows per tar, with --as webdataset. (default: 10000)", "N", min=1)
    ] = None,
) -> None:
    """Export every row of a store as an image file.

    Every row is verified first. DEST appears only when it is complete. If the command is interrupted, run it again. A
    build from a folder of exported PNGs, with the same --size and --classes DEST/classes.txt, has the same pixels and
    labels.
    """
    if shard_rows is not None and form != "webdataset":
        raise typer.BadParameter("--shard-rows requires --as webdataset")
    from decodeonce.prep.export.export import SHARD_ROWS, ExportSettings, export_store

    opened = decodeonce.open_store(store)
    settings = ExportSettings(form, quality=quality, shard_rows=shard_rows or SHARD_ROWS)
    with count_bar("images", total=len(opened)) as update:
        done = export_store(opened, dest, settings, workers=workers or usable_cores(), progress=update)
    unsorted = form == "folder" and not done.sorted_classes
    order = f"; labels do not follow the sorted names: to build from it, pass --classes {dest / 'classes.txt'}"
    classes = counted(done.classes, "class", "classes")
    say(f"{dest}: {counted(done.images, 'image')} in {classes} written{order if unsorted else ''}")
