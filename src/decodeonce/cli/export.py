"""`prep export`: a finished store back to pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli.options import StoreArgument, Workers, option
from decodeonce.cli.output import say
from decodeonce.formatting import counted
from decodeonce.prep.recipe import ExportForm


def export(
    store: StoreArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make.", metavar="DEST")],
    form: Annotated[ExportForm, option("folder: DEST/<class>/*.png; webdataset: DEST/shard-*.tar.", flag="--as")],
    quality: Annotated[int | None, option("JPEGs of this quality. (default: PNG)", "N", min=1, max=100)] = None,
    workers: Workers = None,
    shard_rows: Annotated[int | None, option("Rows of a tar. (default: 10000)", "N", min=1)] = None,
) -> None:
    """Write every row of a store as a picture, checked on its way; run it again after a kill.

    DEST is not there before it is whole. A build from DEST, as a folder of PNGs, gives the same pixels and labels.
    """
    if shard_rows is not None and form != "webdataset":
        raise typer.BadParameter("--shard-rows is for --as webdataset")
    from decodeonce.cli.progress import count_bar
    from decodeonce.host import usable_cores
    from decodeonce.prep.export.export import export_store
    from decodeonce.prep.export.images import SHARD_ROWS, ExportSettings
    from decodeonce.store import open_store

    opened = open_store(store)
    settings = ExportSettings(form, quality=quality, shard_rows=shard_rows or SHARD_ROWS)
    with count_bar("pictures", total=len(opened)) as bar:
        done = export_store(opened, dest, settings, workers=workers or usable_cores(), progress=bar.update)
    unsorted = form == "folder" and not done.sorted_classes
    order = f"; labels are not in the order of the names: to build from it, add --classes {dest / 'classes.txt'}"
    exported = f"{counted(done.pictures, 'picture')} in {counted(done.classes, 'class', 'classes')}"
    say(f"{dest}: {exported}{order if unsorted else ''}")
