"""Write docs/commands.md, every command of `prep` with its flags, from the commands themselves.

`python -m tools.command_reference`; a test fails where the page is another.
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

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
COMMAND = "python -m tools.command_reference"
HEAD = f"""\
# Commands

What `--help`, or `-h`, prints, of every command. `{COMMAND}` writes this page, and a test compares it.

Exit codes: 0 done; 1 failed, one line that says what to do; 2 usage; 75 stopped early, run the same command again.
"""
SHARED = "Flags of most commands"
MOST = 2**63 - 1  # as a bound it is none


class Row(NamedTuple):
    """One argument or flag, as the table has it, in Markdown."""

    name: str
    default: str
    text: str


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that is not hidden as ("prep submit slurm", its parser), groups before what is in them."""
    waiting = [("prep", typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop(0)
        yield path, command
        waiting = [(f"{path} {name}", one) for name, one in members(command).items()] + waiting


def members(command: Any) -> dict[str, Any]:
    """The commands of a group by their names; none of a command."""
    if not hasattr(command, "list_commands"):
        return {}
    context = typer.Context(command)
    return {name: command.get_command(context, name) for name in command.list_commands(context)}


def page() -> str:
    """The whole page."""
    found = dict(commands())
    times = Counter(row for path in found for row in flags(path, found[path]))
    shared = [row for row, number in times.items() if 2 * number > len(found)]
    contents = [f"- [{path}]({anchor(path)}): {summary(one)}" for path, one in found.items() if path != "prep"]
    head = [HEAD, *contents, f"\n## {SHARED}\n\n{table('flag', shared)}\n"]
    known: dict[tuple[Row, ...], str] = {}
    return "\n".join([*head, *(section(path, found, shared, known) for path in found)])


def section(path: str, found: Mapping[str, Any], shared: Sequence[Row], known: dict[tuple[Row, ...], str]) -> str:
    """One command. A group has what all its commands have, and `known` has the sections before it by their rows."""
    command, group = found[path], path.rpartition(" ")[0]
    of_group = [*common(group, found, arguments), *common(group, found, flags)] if group else []
    is_group = bool(members(command))
    taken = [*arguments(path, command), *(common(path, found, arguments) if is_group else [])]
    own = [*flags(path, command), *(common(path, found, flags) if is_group else [])]
    taken, own = ([row for row in rows if row not in (*shared, *of_group)] for rows in (taken, own))
    rows = (*taken, *own)
    parts = [f"## {path}", escaped(prose(command)), fenced(usage(path, command))]
    if len(rows) > 4 and rows in known:
        parts.append(f"Arguments and flags are those of [{known[rows]}]({anchor(known[rows])}).")
    else:
        known[rows] = path
        parts += [table("argument", taken), table("flag", own)]
    if not is_group:
        links = [f"[arguments and flags of {group}]({anchor(group)})"] if of_group else []
        links += [f"[{SHARED.lower()}]({anchor(SHARED)})"] if set(flags(path, command)) & set(shared) else []
        if links:
            parts.append(f"Also the {' and the '.join(links)}.")
        lines = examples(path.partition(" ")[2])
        parts += ["Examples:", fenced(*lines)] if lines else []
    return "\n\n".join(filter(None, parts)) + "\n"


def common(group: str, found: Mapping[str, Any], rows_of: Callable[[str, Any], list[Row]]) -> list[Row]:
    """The rows that every command of a group has."""
    first, *others = [rows_of(path, one) for path, one in found.items() if path.rpartition(" ")[0] == group] or [[]]
    return [row for row in first if all(row in rows for rows in others)]


def anchor(title: str) -> str:
    """The link to a heading of the page."""
    return f"#{title.lower().replace(' ', '-')}"


def arguments(path: str, command: Any) -> list[Row]:
    """A row for each argument."""
    return _rows(path, command, "argument")


def flags(path: str, command: Any) -> list[Row]:
    """A row for each flag that is not hidden, but for --help."""
    return [row for row in _rows(path, command, "option") if "--help" not in row.name]


def _rows(path: str, command: Any, kind: str) -> list[Row]:
    context = typer.Context(command, info_name=path)
    params = [param for param in command.get_params(context) if param.param_type_name == kind]
    return [row(*record) for param in params if (record := param.get_help_record(context))]


def usage(path: str, command: Any) -> str:
    """How it is called: `prep build KIND SRC OUT [FLAGS]`."""
    params = command.get_params(typer.Context(command, info_name=path))
    words = [path, *(param.metavar or param.name.upper() for param in params if param.param_type_name == "argument")]
    last = f"{command.member.upper()} ..." if members(command) else "[FLAGS]"
    return " ".join(words if words[-1].endswith(last) else [*words, last])


def prose(command: Any) -> str:
    """Its help, unwrapped, a line a paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def summary(command: Any) -> str:
    """The first sentence of its help."""
    return escaped(re.split(r"(?<=\.)\s", prose(command))[0])


def row(name: str, text: str) -> Row:
    """A row of the two columns that --help prints: `--task I`, `The number. (default: 0)  [x>=0]`."""
    name, _, value = name.partition(" <")
    value = value.rstrip(">")
    choices = f" {escaped(value.replace('|', ' | '))}" if "|" in value else ""  # an argument's name says enough
    name = f"`{name}`{choices}"
    text, _, notes = text.partition("  [")
    facts = [fact for fact in notes.rstrip("]").split("; ") if fact]
    told = [fact.removeprefix("default: ") for fact in facts if fact.startswith("default: ")]
    default = f"`{told[0]}`" if told else "required" if "required" in facts else ""
    if found := re.search(r" ?\(default: ([^)]*)\)", text):
        default, text = escaped(found[1]), text.replace(found[0], "")
    bounds = [bound for fact in facts if (bound := bounds_text(fact))]
    return Row(name, default, escaped(" ".join([text, *bounds])))


def bounds_text(fact: str) -> str:
    """`1<=x<=9` in words; "" for what is no bound."""
    found = re.fullmatch(r"(?:(\d+)<=x|x>=(\d+))?(?:x?<=(\d+))?", fact)
    if not fact or found is None:
        return ""
    least, most = found[1] or found[2], found[3]
    if most is None or int(most) >= MOST:
        return f"At least {least}."
    return f"At most {most}." if least is None else f"{least} to {most}."


def table(title: str, rows: Sequence[Row]) -> str:
    """A Markdown table, "" for no rows; arguments that are all required need no column that says so."""
    if not rows:
        return ""
    lines = [Row(title, "default", "is" if title == "argument" else "does"), Row(*["---"] * 3), *rows]
    plain = title == "argument" and all(row.default == "required" for row in rows)
    cells = [(line.name, line.text) if plain else line for line in lines]
    # In a cell a bar is escaped even inside of code.
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in cells)


def fenced(*lines: str) -> str:
    """What is typed."""
    return "\n".join(["```", *lines, "```"])


def escaped(text: str) -> str:
    """Plain text as Markdown that shows it so; what stands between backticks stays."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_\[\]<>])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
