"""No promise without a test: docs/guarantees.md names tests that are there, and every promise names one."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "guarantees.md"
SECTIONS = ["Durability", "Determinism", "Detection", "Isolation"]
NAMED = re.compile(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`")


def promises() -> list[tuple[str, str, str]]:
    """(section, promise, the cell of its tests) of each row of the page's tables."""
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
    """The test functions of a file below tests/."""
    tree = ast.parse((TESTS / name).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("section", "promise", "shown_by"), promises())
def test_a_promise_names_tests_that_are_there(section: str, promise: str, shown_by: str) -> None:
    assert promise
    named = NAMED.findall(shown_by)
    assert named, f"no test is named for: {promise}"
    assert NAMED.sub("", shown_by).strip(" ,") == ""
    for name, test in named:
        assert (TESTS / name).is_file(), name
        assert test in functions_of(name), f"{name} has no {test}"


def test_every_section_promises_something() -> None:
    assert list(dict.fromkeys(section for section, _, _ in promises())) == SECTIONS
