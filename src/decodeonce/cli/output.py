"""What every looking command prints: a table for people, or one JSON object.

Under `--quiet`, which a command has by `cls=LoggedCommand` (cli/command.py), `say` is silent and `give` is not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from decodeonce.cli import log, printable

_quiet = False


@contextmanager
def quiet_if(*, quiet: bool) -> Iterator[None]:
    """A command's time, in which `say` and bars are silent if that was asked for."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def is_quiet() -> bool:
    """Whether nothing is to be told but errors."""
    return _quiet


def say(text: str, *, err: bool = False) -> None:
    """Print a line, with names in it whatever they hold; errors (`err`) under --quiet, too."""
    log.message(text)
    if err or not _quiet:
        typer.echo(printable(text), err=err)


def say_marked(mark: str, colour: str, text: str) -> None:
    """Print a line behind a word in colour, which is left away where NO_COLOR, TERM=dumb or no terminal asks for it."""
    typer.echo(f"{typer.style(f'{mark:<4}', fg=colour)}  {printable(text)}")


def colour_wanted() -> bool | None:
    """False where the environment wants no escape codes (no-color.org), else None: only on a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def print_json(data: Mapping[str, Any]) -> None:
    """Print what --json asks for, under --quiet, too."""
    typer.echo(json.dumps(data))


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the facts, a line each or as JSON."""
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
