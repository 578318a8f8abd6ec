"""What every looking command prints: a table for people, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from decodeonce.cli import printable

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def say(text: str, *, err: bool = False) -> None:
    """Print a line, with names in it whatever they hold."""
    typer.echo(printable(text), err=err)


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the facts, a line each or as JSON."""
    if as_json:
        say(json.dumps(facts))
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
