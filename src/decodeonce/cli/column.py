"""`prep column add` and `prep column remove`: columns of your own in a finished store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli import parse
from decodeonce.cli.command import Group, LoggedCommand, new_app
from decodeonce.cli.options import StoreArgument
from decodeonce.cli.output import say

Name = Annotated[str, typer.Argument(metavar="NAME", help="The column's name, also that of its file.")]

app = new_app(cls=Group, help="Add a column of your own to a finished store, or remove one.")
app.callback()(lambda: None)


@app.command(cls=LoggedCommand)
def add(
    store: StoreArgument,
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE.npy", help="Numbers, (rows, ...), in the order of the rows.")],
) -> None:
    """Add the numbers in an npy file as a column, with a checksum. The store gets another digest.

    Each row of the store needs an entry: booleans, integers or floats of at most 8 bytes. After a kill, the store is
    valid, with the column or without it; run the command again.
    """
    import numpy as np

    from decodeonce.store.columns import add_column, read_numbers

    with parse.usage_errors():
        column = add_column(store, name, read_numbers(file))
    numbers = "x".join(map(str, column.shape)) or "1"
    say(f"{store}: column {name}: {numbers} {np.dtype(column.dtype)} per row, in {column.file}")


@app.command(cls=LoggedCommand)
def remove(store: StoreArgument, name: Name) -> None:
    """Remove a column and its file. The store gets another digest."""
    from decodeonce.store.columns import remove_column

    remove_column(store, name)
    say(f"{store}: column {name} is removed")
