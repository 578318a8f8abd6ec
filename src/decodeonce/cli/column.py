"""`prep column add` and `prep column remove`: change the columns of a finished store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli.command import Group, LoggedCommand, StoreArgument, new_app, usage_errors
from decodeonce.cli.output import say

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the column; its file is NAME.npy.")]

column = new_app(cls=Group, help="Add a column of numbers to a finished store, or remove one.")
column.callback()(lambda: None)


@column.command(cls=LoggedCommand)
def add(
    store: StoreArgument,
    name: Name,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.npy", help="Array of shape (rows, ...), in the order of the rows.")
    ],
) -> None:
    """Add a column from a .npy file to a store. The digest of the store changes.

    The file has one entry per row: booleans, integers or floats of at most 8 bytes. If the command is killed, the store
    stays valid, with or without the column; run the command again.
    """
    import numpy as np

    from decodeonce.store.columns import add_column, read_numbers

    with usage_errors():
        added = add_column(store, name, read_numbers(file))
    numbers = "x".join(map(str, added.shape)) or "1"
    say(f"{store}: column {name} added: {numbers} {np.dtype(added.dtype)} per row, in {added.file}")


@column.command(cls=LoggedCommand)
def remove(store: StoreArgument, name: Name) -> None:
    """Remove a column and its file from a store. The digest of the store changes."""
    from decodeonce.store.columns import remove_column

    remove_column(store, name)
    say(f"{store}: column {name} removed")
