"""`prep repair`: repair a damaged store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce.cli.options import StoreArgument, option
from decodeonce.cli.output import say

if TYPE_CHECKING:
    from decodeonce.prep.repair.repair import Repair

FromOption = Annotated[
    str | None,
    option("What the store was built from, as for `prep build`, or another store with its rows.", "SRC", flag="--from"),
]


def repair(store: StoreArgument, source: FromOption = None) -> None:
    """Make again, to the same bytes, what `prep verify` finds bad: exit code 0 whole now, 1 not all of it.

    Run it again after a kill. It tells what it cannot repair, and what to do then.
    """
    from decodeonce.cli.progress import count_bar
    from decodeonce.prep.repair.repair import repair_store

    with count_bar("rows") as bar:
        done = repair_store(store, source, progress=bar.update)
    if done.rows:  # else it is no store, or nothing of it is known
        say(f"{store}: {_outcome(done)}")
    for sentence in done.unrepaired:
        say(f"prep: error: {sentence}", err=True)
    if not done.ok:
        raise typer.Exit(1)


def _outcome(done: Repair) -> str:
    from decodeonce.formatting import counted

    repaired = ", ".join([*([counted(done.repaired_rows, "row")] if done.repaired_rows else []), *done.repaired_files])
    if not done.ok:
        return f"repaired {repaired or 'nothing'}; not whole"
    whole = f"whole, {counted(done.rows, 'row')}"
    return f"repaired {repaired}; {whole}" if repaired else f"{whole}; nothing to repair"
