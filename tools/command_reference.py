"""Write the second part of docs/reference/commands.md, all `prep` commands and flags, from the commands themselves.

Run it with `python -m tools.command_reference`. A test fails if the page is out of date. The part above MARK is written
by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from decodeonce.cli.app import app
from decodeonce.cli.examples import examples

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "commands.md"
COMMAND = "python -m tools.command_reference"
MARK = f"<!-- {COMMAND} generates the text below -->\n"
COMMON = "Common arguments and flags"
MOST_TIMES = 2  # rows of more commands are explained once


class Row(NamedTuple):
    """A table row, in Markdown: one argument or flag."""

    name: str
    default: str
    text: str


def commands() -> Iterator[tuple[str, Any]]:
    """Yield (path, command) for every visible command, such as "prep submit slurm". A group precedes its members."""
    pending = [("prep", typer.main.get_command(app))]
    while pending:
        path, command = pending.pop(0)
        yield path, command
        pending = [(f"{path} {name}", one) for name, one in members(command).items()] + pending


def members(command: Any) -> dict[str, Any]:
    """Return the commands of a group by name; an empty dict for a command that is not a group."""
    if not hasattr(command, "list_commands"):
        return {}
    context = typer.Context(command)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def page() -> str:
    """Return the whole page."""
    found = dict(commands())
    paths = [path for path in found if not twin(path, found)]
    distinct = dict.fromkeys(tuple(own_rows(path, found)) for path in paths)
    times = Counter(row for rows in distinct for row in rows)
    repeated = [row for row, number in times.items() if number > MOST_TIMES]
    known: dict[tuple[Row, ...], str] = {}
    sections = [section(path, found, repeated, known) for path in paths]
    return "\n".join([written() + MARK, f"## {COMMON}\n\n{bullets(repeated)}\n", *sections])


def written() -> str:
    """Return the part of the page that is written by hand."""
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0]


def twin(path: str, found: Mapping[str, Any]) -> str:
    """Return the member of an earlier group with the same name and flags, such as `prep build list`; "" if none."""
    group, _, name = path.rpartition(" ")
    for other in found:
        if other == path:
            return ""
        if other.endswith(f" {name}") and group.count(" ") and flags(other, found[other]) == flags(path, found[path]):
            return other
    return ""


def section(path: str, found: Mapping[str, Any], repeated: Sequence[Row], known: dict[tuple[Row, ...], str]) -> str:
    """Return the section of one command, which only names the rows in `repeated`.

    `known` maps the rows of each earlier section to its path, so that a section with the same rows links to it.
    """
    command, rows = found[path], tuple(own_rows(path, found))
    parts = [f"## {path}", escaped(prose(command)), usage(path, command)]
    if not members(command):
        parts.append("\n".join(["```", *examples(path.removeprefix("prep ")), "```"]))
    if len(rows) > 4 and rows in known:
        parts.append(f"It has the same arguments and flags as [{known[rows]}]({anchor(known[rows])}).")
    else:
        known[rows] = path
        named = [f"`{flag_name(row)}`" for row in rows if row in repeated and flag_name(row).startswith("--")]
        parts.append(bullets([row for row in rows if row not in repeated]))
        more = " and ".join(filter(None, [", ".join(named[:-1]), *named[-1:]]))
        parts.append(f"[Common flags]({anchor(COMMON)}): {more}." if named else "")
    twins = {twin(f"{path} {name}", found).rpartition(" ")[0] for name in members(command)} - {""}
    if twins:
        [other] = twins
        parts.append(f"Its commands have the same arguments and flags as those of [{other}]({anchor(other)}).")
    return "\n\n".join(filter(None, parts)) + "\n"


def own_rows(path: str, found: Mapping[str, Any]) -> list[Row]:
    """Return the arguments and flags that the section of a command lists.

    Rows that all members of a group share belong to the group.
    """
    command, group = found[path], path.rpartition(" ")[0]
    of_group = [*common(group, found, arguments), *common(group, found, flags)] if group else []
    rows = []
    for rows_of in (arguments, flags):
        rows += [*rows_of(path, command), *(common(path, found, rows_of) if members(command) else [])]
    return [row for row in rows if row not in of_group]


def common(group: str, found: Mapping[str, Any], rows_of: Callable[[str, Any], list[Row]]) -> list[Row]:
    """Return the rows that all commands of a group share."""
    first, *others = [rows_of(path, one) for path, one in found.items() if path.rpartition(" ")[0] == group] or [[]]
    return [row for row in first if all(row in rows for rows in others)]


def anchor(title: str) -> str:
    """Return the link target of a heading of the page."""
    return f"#{title.lower().replace(' ', '-')}"


def arguments(path: str, command: Any) -> list[Row]:
    """Return one row per argument."""
    return _rows(path, command, "argument")


def flags(path: str, command: Any) -> list[Row]:
    """Return one row per visible flag, without --help."""
    return [row for row in _rows(path, command, "option") if "--help" not in row.name]


def _rows(path: str, command: Any, kind: str) -> list[Row]:
    context = typer.Context(command, info_name=path)
    params = [param for param in command.get_params(context) if param.param_type_name == kind]
    return [row(*record) for param in params if (record := param.get_help_record(context))]


def usage(path: str, command: Any) -> str:
    """Return a command with its arguments: `prep build folder SRC OUT`; "" for a group."""
    params = command.get_params(typer.Context(command, info_name=path))
    words = [path, *(param.metavar or param.name.upper() for param in params if param.param_type_name == "argument")]
    return "" if members(command) else f"`{' '.join(words)}`"


def prose(command: Any) -> str:
    """Return the first paragraph of a command's help, unwrapped."""
    return " ".join((command.help or "").split("\n\n")[0].split())


def flag_name(row: Row) -> str:
    """Return the long name of an argument or flag without its value: --rows."""
    names = row.name.split("`")[1].split(", ")
    return names[-1].split()[0]


def row(name: str, text: str) -> Row:
    """Parse the two columns that --help prints: `--task I` and `The number. (default: 0)  [x>=0]`."""
    name, _, value = name.partition(" <")
    value = value.rstrip(">")
    choices = f" {escaped(value.replace('|', ' | '))}" if "|" in value else ""  # other values need no explanation
    name = f"`{name}`{choices}"
    text, _, notes = text.partition("  [")
    facts = [fact for fact in notes.rstrip("]").split("; ") if fact]
    defaults = [fact.removeprefix("default: ") for fact in facts if fact.startswith("default: ")]
    default = f"`{defaults[0]}`" if defaults else "required" if "required" in facts else ""
    if found := re.search(r" ?\(default: ([^)]*)\)", text):
        default, text = escaped(found[1]), text.replace(found[0], "")
    return Row(name, default, escaped(text))


def bullets(rows: Sequence[Row]) -> str:
    """Return a Markdown list of arguments and flags; "" for no rows."""
    lines = []
    for row in rows:
        default = f" ({row.default})" if row.default and row.default != "required" else ""
        required = " (required)" if row.default == "required" and row.name.startswith("`-") else ""
        lines.append(f"- {row.name}{default}{required}: {row.text}")
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Escape Markdown characters in plain text, except between backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_\[\]<>])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
