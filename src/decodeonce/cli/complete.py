"""What the shell offers for a value that is being typed, beside what Typer itself completes."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from decodeonce.formatting import quoted


def class_names(ctx: typer.Context) -> list[str]:
    """The class names of the store that stands before on the command line; none where no store can be read.

    Those that would have to be quoted are left out. store.json is read as it is: numpy would take longer to import
    than people wait for a completion.
    """
    # An option without its value ends click's parsing: what stands before it is then in args.
    given = [ctx.params.get("store"), *(ctx.params.get("stores") or ()), *ctx.args]
    path = Path(next(filter(None, given), "."), "store.json")
    try:
        manifest = json.loads(path.read_bytes() if path.is_file() else b"")  # a pipe would never end
        names = [str(described["name"]) for described in manifest["classes"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [name for name in names if name == quoted(name)]  # of which Typer takes those that begin right
