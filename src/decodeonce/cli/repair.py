"""`prep repair`: repair a damaged store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from decodeonce.cli.command import StoreArgument, option, parse_paired
from decodeonce.cli.output import count_bar, print_result, say
from decodeonce.formatting import counted

FromOption = Annotated[
    str | None,
    option(
        "Read images from SRC: the source of the build, as for `prep build`, or another store with these rows. For a "
        "list, pass the folder that its paths are relative to.",
        "SRC",
        flag="--from",
    ),
]

PairedOption = Annotated[
    list[str] | None,
    option("Read masks or second images from DIR, as for `prep build`. Repeat the flag for more masks.", "NAME=DIR"),
]


def repair(store: StoreArgument, source: FromOption = None, paired: PairedOption = None) -> None:
    """Repair the damage that `prep verify` finds, and restore the same bytes.

    The exit code is 0 if the store is intact afterwards, and 1 if damage is left. A line for each damage that is left
    says what to do. Run the same command again to resume.
    """
    from decodeonce.prep.repair.repair import repair_store

    with count_bar("rows") as update:
        done = repair_store(store, source, paired=parse_paired(paired or []), progress=update)
    if done.rows:  # otherwise it is not a store, or its manifest cannot be read
        rows = [counted(done.repaired_rows, "row")] if done.repaired_rows else []
        repaired, intact = ", ".join([*rows, *done.repaired_files]), f"{counted(done.rows, 'row')} intact"
        if not done.ok:
            outcome = f"repaired {repaired or 'nothing'}; still damaged"
        else:
            outcome = f"repaired {repaired}; {intact}" if repaired else f"{intact}; nothing to repair"
        say(f"{store}: {outcome}")
    for sentence in done.unrepaired:
        say(f"prep: error: {sentence}", err=True)
    print_result({"ok": done.ok, **asdict(done)})
    if not done.ok:
        raise typer.Exit(1)
