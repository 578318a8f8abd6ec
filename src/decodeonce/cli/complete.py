"""Shell completion of values, in addition to what Typer completes."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from decodeonce.formatting import quoted


def class_names(ctx: typer.Context) -> list[str]:
    """Return the class names of the store that precedes on the command line; an empty list if it cannot be read.

    Names that need quotes are left out. store.json is read without `open_store`, because importing NumPy would take
    too long for a completion.
    """
    # An option without its value ends the parsing of click, and the arguments before it are in args.
    given = [ctx.params.get("store"), *(ctx.params.get("stores") or ()), *ctx.args]
    path = Path(next(filter(None, given), "."), "store.json")
    try:
        manifest = json.loads(path.read_bytes() if path.is_file() else b"")  # reading a pipe would block
        names = [str(described["name"]) for described in manifest["classes"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [name for name in names if name == quoted(name)]  # Typer selects those that match what was typed
