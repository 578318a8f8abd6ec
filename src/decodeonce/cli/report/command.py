"""`prep report`: a store as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli.options import StoreArgument
from decodeonce.cli.output import say

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="SRC", help="Show rejected images from SRC, the source of the build, as for `prep build`."
    ),
]


def report(
    store: StoreArgument,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    source: FromOption = None,
) -> None:
    """Write an HTML page about a store: classes, sizes, levels, images, rejects, recipe, checks.

    The page is a single file that fetches nothing and runs nothing. Up to 2 GB, every row is read and checked; of a
    larger store, a sample. The page says how many.
    """
    from decodeonce.cli.progress import count_bar
    from decodeonce.cli.report.facts import gather
    from decodeonce.cli.report.page import page
    from decodeonce.cli.rows import damage_messages
    from decodeonce.cli.thumbnail import need_pillow
    from decodeonce.cli.written import check_out, write_out
    from decodeonce.formatting import size_text
    from decodeonce.store import open_store

    opened = open_store(store)
    check_out(opened, out)
    need_pillow("make small pictures")
    with count_bar("rows") as bar:
        facts = gather(opened, source, bar.update)
    encoded = page(facts)
    write_out(out, encoded)
    say(f"{out}: {store} on one page of {size_text(len(encoded))}")
    for problem in facts.problems.values():
        say(f"prep: note: {problem}", err=True)
    for sentence in damage_messages(opened, facts.rows.damaged, ""):
        say(f"prep: note: {sentence}", err=True)
