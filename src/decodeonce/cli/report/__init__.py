"""`prep report`: write an HTML page about a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import decodeonce
from decodeonce.cli.command import StoreArgument
from decodeonce.cli.output import check_out, count_bar, say, write_out
from decodeonce.formatting import size_text


def report(
    store: StoreArgument,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the page to FILE.")] = Path("report.html"),
) -> None:
    """Write an HTML page about a store: classes, sizes, levels, images, rejects, recipe, checks.

    The page is a single file without scripts; it loads nothing from the network. A store of up to 2 GB is read and
    checked in full. From a larger store, only a sample of rows is read, and the page says how many.
    """
    from decodeonce.cli.report.page import gather, page
    from decodeonce.cli.rows import damage_messages

    opened = decodeonce.open_store(store)
    check_out(opened, out)
    with count_bar("rows") as update:
        content = gather(opened, update)
    html = page(content)
    write_out(out, html)
    say(f"{out}: report on {store} written, {size_text(len(html))}")
    for problem in content.problems.values():
        say(f"prep: note: {problem}", err=True)
    for sentence in damage_messages(opened, content.rows.damaged, ""):
        say(f"prep: note: {sentence}", err=True)
