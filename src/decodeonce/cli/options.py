"""Arguments and flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodeonce.cli import parse
from decodeonce.cli.complete import class_names

if TYPE_CHECKING:
    from decodeonce.store.select import Selection


def option(help_text: str, metavar: str | None = None, *, flag: str = "", **others: Any) -> Any:
    """An option of Typer. Its flag is the parameter's name unless `flag` is given; a bool needs it, or gets --no-X."""
    return typer.Option(*filter(None, [flag]), help=help_text, metavar=metavar, **others)


Src = Annotated[str, typer.Argument(metavar="SRC", help="Where the images are.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="The store to make, or to resume.")]
StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A finished store.")]

Size = Annotated[str, option("Height and width of a row in pixels: 256, or HxW.", "SIZE")]
Workers = Annotated[int | None, option("Number of worker processes. (default: usable cores)", "N", min=1)]
MaxBad = Annotated[str, option("Fail when more images are rejected: a share (0.1%) or a number (25).", "SHARE")]
DryRun = Annotated[bool, option("Show what would be made; write nothing.", flag="--dry-run")]
JsonFlag = Annotated[bool, option("Print one JSON object.", flag="--json")]

ClassOption = Annotated[
    list[str] | None,
    option("Only rows of this class; repeatable.", "NAME", flag="--class", autocompletion=class_names),
]
MatchOption = Annotated[str | None, option("Only rows whose source matches, for example 'train/n01440764/*'.", "GLOB")]
RowsOption = Annotated[str | None, option("Only rows of this range, as a Python slice: 0:1000, or -500:", "A:B")]


def selection(names: list[str] | None, match: str | None, rows: str | None) -> Selection:
    """What --class, --match and --rows select."""
    from decodeonce.store.select import Selection, row_range

    with parse.usage_errors():
        return Selection(tuple(names or ()), match, row_range(rows) if rows is not None else (None, None))
