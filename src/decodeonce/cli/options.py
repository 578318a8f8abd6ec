"""Arguments and flags that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodeonce.cli import parse

if TYPE_CHECKING:
    from decodeonce.store import Store
    from decodeonce.store.select import Selection


def option(help_text: str, metavar: str | None = None, *, flag: str = "", **others: Any) -> Any:
    """Return a Typer option named `flag`, or like its parameter. A bool without `flag` would also get --no-X."""
    return typer.Option(*filter(None, [flag]), help=help_text, metavar=metavar, **others)


Src = Annotated[
    str, typer.Argument(metavar="SRC", help="Source of the images: a folder, a file or a pattern, depending on KIND.")
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Store to create, or to resume if its build was stopped.")]
StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Finished store.")]

Size = Annotated[str, option("Set the height and width of a row in pixels: 256, or HxW such as 192x256.", "SIZE")]
Workers = Annotated[int | None, option("Run N workers at the same time. (default: usable cores)", "N", min=1)]
DEFAULT_MAX_BAD = "auto"
MaxBad = Annotated[
    str,
    option(
        "Fail if more images than this are rejected: a number such as 25, a share such as 0.1%, or auto. auto allows "
        "0.1% of the images, or, with fewer than 10,000 images, a tenth of them, but at most ten.",
        "SHARE",
    ),
]
DryRun = Annotated[bool, option("Print what would be written, and write nothing to OUT.", flag="--dry-run")]
JsonFlag = Annotated[bool, option("Print one JSON object instead of text.", flag="--json")]


ClassOption = Annotated[
    list[str] | None,
    option("Select rows of this class. Repeat the flag for more classes. (default: all)", "NAME", flag="--class"),
]
MatchOption = Annotated[
    str | None,
    option("Select rows whose source matches a pattern such as 'train/n01440764/*'. (default: all)", "GLOB"),
]
RowsOption = Annotated[
    str | None, option("Select rows by a Python slice such as 0:1000 or -500:. (default: all)", "A:B")
]


def selection(names: list[str] | None, match: str | None, rows: str | None) -> Selection:
    """Return the selection of --class, --match and --rows."""
    from decodeonce.store.select import Selection, row_range

    with parse.usage_errors():
        return Selection(tuple(names or ()), match, row_range(rows) if rows is not None else (None, None))


def selected_lines(
    store: Store, names: list[str] | None, match: str | None, rows: str | None
) -> Iterator[tuple[int, bytes]]:
    """Yield the rows that --class, --match and --rows select, each with its line of samples.tsv."""
    from decodeonce.store.select import select_lines

    with parse.usage_errors():
        return select_lines(store, selection(names, match, rows))
