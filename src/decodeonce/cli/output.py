"""Print messages, tables and JSON.

With `--quiet`, which `LoggedCommand` adds to a command, `say` prints nothing but errors; `print_json` still prints.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from decodeonce.cli import fitted, log

_quiet = False


@contextmanager
def quiet_if(*, quiet: bool) -> Iterator[None]:
    """Silence `say` and progress bars inside the block if `quiet`."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def is_quiet() -> bool:
    """Whether --quiet is in effect."""
    return _quiet


def say(text: str, *, err: bool = False) -> None:
    """Print a line, escaped and wrapped for terminals, and log it. Errors (`err`) are printed with --quiet, too."""
    log.message(text)
    if err or not _quiet:
        typer.echo(fitted(text, sys.stderr if err else sys.stdout), err=err)


def say_marked(mark: str, colour: str, text: str) -> None:
    """Print a line that starts with `mark`, coloured if the output is a terminal that wants colours."""
    line = fitted(f"{mark:<4}  {text}", sys.stdout)
    typer.echo(typer.style(line[:4], fg=colour) + line[4:])


def colour_wanted() -> bool | None:
    """Return False if NO_COLOR (no-color.org) or TERM=dumb is set, otherwise None: colours only on a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object, with --quiet, too."""
    typer.echo(json.dumps(data))


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the facts, one per line or as JSON."""
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name.replace('_', ' '):<{width}}  {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
