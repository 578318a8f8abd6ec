"""The pages written by hand, README.md and docs/*.md without the largely generated one, and their code blocks."""

import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tools.setup_env import VENV

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATED = ROOT / "docs" / "reference" / "commands.md"
WRITTEN = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {GENERATED})]
SHELL = ("", "sh", "bash", "console")  # languages of blocks with command lines
FENCE = re.compile(r"( *)(`{3,})([^`\n]*)\n(.*?)^\1\2`* *$", re.MULTILINE | re.DOTALL)
# An HTML comment before a block; readers of the page do not see it.
NOT_RUN = re.compile(r"<!-- not run: ([^<>]+) -->\s*\Z")


class Block(NamedTuple):
    """A code block: its language ("" if it has none), text, first line, and why it is not run ("" if it is)."""

    language: str
    text: str
    line: int
    not_run: str


def name_of(page: Path) -> str:
    """Return the path of a page relative to the repository: docs/contribute/sources.md."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page in order, also those inside tabs."""
    return _blocks(page.read_text(encoding="utf-8"), first_line=1)


def _blocks(text: str, first_line: int) -> Iterator[Block]:
    for fence in FENCE.finditer(text):
        indent, _, language, content = fence.groups()
        content = "".join(line.removeprefix(indent) for line in content.splitlines(keepends=True))
        reason = NOT_RUN.search(text[: fence.start()])
        line = text.count("\n", 0, fence.start(4)) + first_line
        if language.startswith("{tab}"):
            yield from _blocks(content, line)
            continue
        yield Block(language.strip(), content, line, reason[1] if reason else "")


def is_pinned(distribution: str) -> bool:
    """Whether the installed release is the one in constraints.txt. Other releases print other texts and warnings."""
    pins = re.findall(
        rf"^{distribution}==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE | re.IGNORECASE
    )
    return find_spec(distribution.lower()) is not None and version(distribution) in pins


def is_full_ci() -> bool:
    """Whether CI runs in the environment of `make env`, on a Python for which that installs everything."""
    return bool(os.environ.get("CI")) and Path(sys.prefix).resolve() == VENV.resolve()


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks, with the same line numbers."""
    return FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page.read_text(encoding="utf-8"))
