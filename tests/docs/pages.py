"""The written pages, README.md and docs/*.md, and what stands in their fences."""

from __future__ import annotations

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
GENERATED = ROOT / "docs" / "commands.md"
WRITTEN = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {GENERATED})]
SHELL = ("", "sh", "bash", "console")  # languages of blocks in which lines are typed
FENCE = re.compile(r"( *)(`{3,})([^`\n]*)\n(.*?)^\1\2`* *$", re.MULTILINE | re.DOTALL)
# Readers of the page do not see it.
MARK = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)


class Block(NamedTuple):
    """A fence: its language ("" for none), its text, the line it begins in, and why it is not run ("" if it is)."""

    language: str
    text: str
    line: int
    not_run: str


def name_of(page: Path) -> str:
    """The page as tests call it: docs/sources.md."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fences of a page in their order."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        indent, _, language, inside = found.groups()
        inside = "".join(line.removeprefix(indent) for line in inside.splitlines(keepends=True))
        marked = MARK.search(text[: found.start()])
        line = text.count("\n", 0, found.start(4)) + 1
        yield Block(language.strip(), inside, line, marked[1] if marked else "")


def is_pinned(distribution: str) -> bool:
    """Whether the release that constraints.txt names is installed: another one tells and warns otherwise."""
    pins = re.findall(
        rf"^{distribution}==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE | re.IGNORECASE
    )
    return find_spec(distribution.lower()) is not None and version(distribution) in pins


def is_ci_of_all() -> bool:
    """Whether this is CI's run in the environment that make builds, on a Python for which it installs everything."""
    return bool(os.environ.get("CI")) and sys.version_info >= (3, 11) and Path(sys.prefix).resolve() == VENV.resolve()


def prose(page: Path) -> str:
    """The text of a page without its fences, line numbers kept."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
