"""Every guarantee in docs/reference/guarantees.md names at least one test, and all named tests exist."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reference" / "guarantees.md"
SECTIONS = ["Durability", "Determinism", "Detection", "Without locks between nodes", "Isolation"]
NAMED = re.compile(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`")


def promises() -> list[tuple[str, str, str]]:
    """Return (section, promise, cell with its tests) for each row of the tables."""
    found, section = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and set(line) - set("|- ") and cells[0] != "promise":
            assert len(cells) == 2, line
            found.append((section, cells[0], cells[1]))
    return found


@lru_cache
def functions_of(name: str) -> set[str]:
    """Return the names of the test functions in a file below tests/."""
    tree = ast.parse((TESTS / name).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("section", "promise", "shown_by"), promises())
def test_guarantee_names_existing_tests(section: str, promise: str, shown_by: str) -> None:
    assert promise
    named = NAMED.findall(shown_by)
    assert named, f"no test is named for: {promise}"
    assert NAMED.sub("", shown_by).strip(" ,") == ""
    for name, test in named:
        assert (TESTS / name).is_file(), name
        assert test in functions_of(name), f"{name} has no {test}"


def test_every_section_has_guarantees() -> None:
    assert list(dict.fromkeys(section for section, _, _ in promises())) == SECTIONS
