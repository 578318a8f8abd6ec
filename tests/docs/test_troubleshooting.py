"""Every message that docs/troubleshooting.md quotes is a message of the package.

The page quotes parts of messages in headings and in the first cells of its tables. `...` stands for text that varies.
The section on other programs is not checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

import pytest

from tests.docs.pages import ROOT, prose

PAGE = ROOT / "docs" / "troubleshooting.md"
PACKAGE = ROOT / "src" / "decodeonce"
OTHER_PROGRAMS = "## Messages of other programs"
QUOTED = re.compile(r"`([^`]+)`")
SHORTEST = 8  # shorter pieces, such as "lacks", occur in too many strings to show anything


def messages(page: str) -> Iterator[str]:
    """Yield the quoted messages of a page, without those of other programs."""
    section = ""
    for line in page.splitlines():
        if line.startswith("#"):
            section = line
        place = line.split("|")[1] if line.startswith("|") else line if line.startswith("#") else ""
        if section != OTHER_PROGRAMS:
            yield from QUOTED.findall(place)


def pieces(message: str) -> list[str]:
    """Split a message at `...` and return the pieces that are long enough to be checked."""
    return [piece for part in message.split("...") if len(piece := part.strip()) >= SHORTEST]


def constants(source: str) -> Iterator[str]:
    """Yield the strings of a module except docstrings: adjacent ones joined, f-strings split at their values."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@lru_cache
def strings() -> tuple[str, ...]:
    """Return the strings of all modules of the package."""
    return tuple(text for path in sorted(PACKAGE.rglob("*.py")) for text in constants(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("message", list(messages(prose(PAGE))))
def test_message_of_page_is_in_the_package(message: str) -> None:
    assert pieces(message), f"quote more of this message: it has no piece of {SHORTEST} characters"
    missing = [piece for piece in pieces(message) if not any(piece in text for text in strings())]
    assert not missing, f"no string of src/decodeonce contains {missing}; quote the message as it is printed now"


def test_messages_are_found() -> None:
    assert {"no images found", "does not match its checksum"} <= set(messages(prose(PAGE)))
    assert OTHER_PROGRAMS in prose(PAGE).splitlines()  # otherwise, a renamed section would be checked
    page = f"# `a`\n`b`\n| message | reason |\n|---|---|\n| `c ... d`, `e` | `f` |\n{OTHER_PROGRAMS}\n| `g` | h |\n"
    assert list(messages(page)) == ["a", "c ... d", "e"]
    assert pieces("classes that ... lacks ...; asked for") == ["classes that", "; asked for"]


def test_strings_are_joined_and_split_at_values() -> None:
    source = '''"""A docstring."""\nraise ValueError(f"{x} goes " "far" f" {y:>3} from here", "a" "b")'''
    assert set(constants(source)) == {" goes far ", " from here", "ab", ">3"}
