"""docs/reference/commands.md is up to date; other pages explain every flag, and name existing commands and flags."""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.command import app
from tests.docs.pages import GENERATED, SHELL, WRITTEN, blocks, is_pinned, name_of, prose
from tests.plugins import example_installed
from tools import command_reference

COMMANDS = dict(command_reference.commands())
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# The beginning of a line that runs `prep`.
RUNS_PREP = re.compile(r"\s*(\$ )?(\w+=\S* )*((srun|mpiexec|mpirun|time|nohup|bash)\b.* )?prep( |$)")
INLINE = re.compile(r"(?<!`)`(prep [^`]+)`(?!`)")


def flags_of(command: Any) -> set[str]:
    """Return the long flags of a command, or of all commands of a group."""
    flags = {flag for param in command.params for flag in param.opts + param.secondary_opts if flag.startswith("--")}
    return flags.union(*map(flags_of, command_reference.members(command).values()))


def test_every_flag_is_explained_on_a_page() -> None:
    texts = [command_reference.written(), *(page.read_text(encoding="utf-8") for page in WRITTEN)]
    explained = {flag for text in texts for flag in FLAG.findall(text)}
    flags = set[str]().union(*map(flags_of, COMMANDS.values()))
    assert flags - explained == set()


def test_command_reference_is_up_to_date() -> None:
    if not is_pinned("typer"):
        pytest.skip("needs the Typer of constraints.txt; other releases name types differently")
    same = GENERATED.read_text(encoding="utf-8") == command_reference.page()
    assert same, f"{name_of(GENERATED)} is out of date; run: {command_reference.COMMAND}"


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words after `prep` of every command line in a shell block, also after `A=1 srun …`. Skip output."""
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(RUNS_PREP, line) is None:
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word[0] in "|&;()<>":
                if "prep" in words:
                    yield words[words.index("prep") + 1 :]
                words = []
            else:
                words.append(word)


@cache
def parser() -> Any:
    """Return `prep` with commands that parse their arguments and do nothing else."""
    root = typer.main.get_command(app)
    disable(root)
    return root


def parse(words: Sequence[str]) -> None:
    """Parse a command line as `prep` does, without running it."""
    if not set(words) <= flags_of(parser()):  # not `prep --version`, which needs no command
        parser().main(list(words), prog_name="prep", standalone_mode=False)


def disable(command: Any) -> None:
    for param in command.params:
        param.callback = None  # the callback of --install-completion would install files
    for name in command_reference.members(command):
        disable(command.resolve_command(typer.Context(command), [name])[1])
    if not hasattr(command, "commands"):
        command.invoke = parse_inner_command


def parse_inner_command(context: Any) -> None:
    if words := context.params.get("words"):  # of `prep submit slurm build ...`
        parse(words)


def test_command_lines_of_pages_are_valid(tmp_path: Path) -> None:
    shown = [(page, block) for page in WRITTEN for block in blocks(page) if block.language in SHELL]
    assert sum(len([*command_lines(block.text)]) for _, block in shown) > 80
    with example_installed(tmp_path):
        parser.cache_clear()
        for page, block in shown:
            for words in command_lines(block.text):
                try:
                    parse(words)
                except Exception as error:
                    pytest.fail(f"{name_of(page)}: prep {' '.join(words)}: {error}")


def mentions(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the command and the flag of every `prep command … --flag` in the prose of a page."""
    for inline in INLINE.finditer(prose(page)):
        words = inline[1].replace("\\|", "|").split()
        paths = [f"prep {word}" for word in words[1].split("|")]
        members = command_reference.members(COMMANDS.get(paths[0]))
        if len(words) > 2 and set(words[2].split("|")) <= set(members):
            paths = [f"{paths[0]} {word}" for word in words[2].split("|")]
        yield from ((path, flag) for path in paths for flag in FLAG.findall(inline[1]) or [""])


def test_commands_and_flags_in_prose_exist() -> None:
    wrong = []
    for page in WRITTEN:
        for path, flag in mentions(page):
            known = flags_of(COMMANDS[path]) | {"--help"} if path in COMMANDS else set()
            if path.startswith("prep submit"):
                known |= flags_of(COMMANDS["prep build"])
            exists = path in COMMANDS and (not flag or flag in known)
            if not exists and not path.startswith("prep -") and path != "prep COMMAND":
                wrong.append(f"{name_of(page)}: {path} {flag}")
    assert not wrong
