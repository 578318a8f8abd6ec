"""Commands and flags: each is written about, what is written about is there, and the reference is up to date."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.command import app
from tests.docs.pages import GENERATED, SHELL, WRITTEN, blocks, is_pinned, name_of, prose
from tools import command_reference

COMMANDS = dict(command_reference.commands())
# What stands on every command line program of its kind, or is shown by --help alone.
EVERYWHERE = {"--help", "--install-completion", "--show-completion"}
TEXTS = {name_of(page): page.read_text(encoding="utf-8") for page in WRITTEN}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# How a line begins that has a command of ours.
BEFORE = re.compile(r"\s*(\$ )?(\w+=\S* )*((srun|mpiexec|mpirun|time|nohup|bash)\b.* )?prep( |$)")
INLINE = re.compile(r"(?<!`)`(prep [^`]+)`(?!`)")


def flags_of(command: Any) -> set[str]:
    """The long flags of a command, or of all commands of a group."""
    flags = {flag for param in command.params for flag in param.opts + param.secondary_opts if flag.startswith("--")}
    return flags.union(*map(flags_of, command_reference.members(command).values()))


TIMES = Counter(chain(*map(flags_of, COMMANDS.values())))
COMMON = {flag for flag in TIMES if 2 * TIMES[flag] > len(COMMANDS)}  # one page is enough for these


def like(path: str) -> list[str]:
    """The commands with the flags of this one, itself among them: what is said of one is said of all."""
    return [other for other, command in COMMANDS.items() if flags_of(command) == flags_of(COMMANDS[path])]


def names(path: str) -> re.Pattern[str]:
    """What a page must hold to be about a command: `prep submit slurm`, also as `prep submit slurm|pbs`.

    `prep build` is enough for its kinds, which share most flags.
    """
    *words, last = re.sub("^prep (build|plan) .*", r"prep \1", path).split()
    return re.compile(rf"\b{' '.join([*words, ''])}(?:[a-z]+(?:\||\\\|))*{last}\b")


def undocumented() -> Iterator[str]:
    """Every command that no written page names, and every flag that no page about its command names."""
    everything = "".join(TEXTS.values())
    for path, command in COMMANDS.items():
        about = [text for text in TEXTS.values() if any(names(one).search(text) for one in like(path))]
        if not names(path).search(everything):
            yield path
        for flag in sorted(flags_of(command) - EVERYWHERE):
            written = re.compile(rf"(?<![\w-]){flag}(?![\w-])")
            if not any(map(written.search, [everything] if flag in COMMON else about)):
                yield f"{path} {flag}"


def test_every_command_and_flag_is_written_about() -> None:
    missing = list(undocumented())
    assert not missing, f"write of these in README.md or a page of docs/: {', '.join(missing)}"


def test_the_reference_is_what_it_would_be() -> None:
    if not is_pinned("typer"):
        pytest.skip("not the Typer of constraints.txt: another tells types in other words")
    same = GENERATED.read_text(encoding="utf-8") == command_reference.page()
    assert same, f"{name_of(GENERATED)} is not what the commands say; run: {command_reference.COMMAND}"


def command_lines(text: str) -> Iterator[list[str]]:
    """The words after `prep` of every command line in a shell block, `A=1 srun … prep` too; not what was printed."""
    for line in text.replace("\\\n", " ").splitlines():
        if re.match(BEFORE, line) is None:
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


SHOWN = [
    pytest.param(words, id=f"{name_of(page)}: prep {' '.join(words)}")
    for page in WRITTEN
    for block in blocks(page)
    if block.language in SHELL
    for words in command_lines(block.text)
]


def parse(words: Sequence[str]) -> None:
    """Read a command line as `prep` does, and do nothing."""
    root: Any = typer.main.get_command(app)
    _disarm(root)
    if set(words) <= flags_of(root):  # prep --version; that there is no command is no mistake
        return
    root.main(list(words), prog_name="prep", standalone_mode=False)


def _disarm(command: Any) -> None:
    for param in command.params:
        param.callback = None  # that of --install-completion would
    for inside in command_reference.members(command).values():
        _disarm(inside)
    if not hasattr(command, "commands"):
        command.invoke = _go_on


def _go_on(context: Any) -> None:
    if words := context.params.get("words"):  # prep submit slurm build ...
        parse(words)


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_line_of_a_page_is_one(words: list[str]) -> None:
    parse(words)


def test_command_lines_are_found() -> None:
    assert len(SHOWN) >= 10
    text = "prep a \\\n   --b 'c d'  # e\nsrun -n 2 prep f|head && prep g; x\nA=1 prep h > i\n$ prep\n"
    assert list(command_lines(text)) == [["a", "--b", "c d"], ["f"], ["g"], ["h"], []]
    assert list(command_lines("prepare\nok: prep x\n# prep y\n")) == []


def mentions(page: Path) -> Iterator[tuple[str, str]]:
    """Every `prep command … --flag` in a page's prose, as the command and the flag."""
    for found in INLINE.finditer(prose(page)):
        words = found[1].replace("\\|", "|").split()
        paths = [f"prep {word}" for word in words[1].split("|")]
        inside = command_reference.members(COMMANDS.get(paths[0]))
        if len(words) > 2 and set(words[2].split("|")) <= set(inside):
            paths = [f"{paths[0]} {word}" for word in words[2].split("|")]
        yield from ((path, flag) for path in paths for flag in FLAG.findall(found[1]) or [""])


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_commands_and_flags_in_the_prose_are_there(page: Path) -> None:
    wrong = []
    for path, flag in mentions(page):
        if path.startswith("prep -") or path == "prep COMMAND":
            continue
        known = flags_of(COMMANDS[path]) | {"--help"} if path in COMMANDS else set()
        if path.startswith("prep submit"):
            known |= flags_of(COMMANDS["prep build"])
        if path not in COMMANDS or (flag and flag not in known):
            wrong.append(f"{path} {flag}".strip())
    assert not wrong
