"""Every guarantee in docs/reference/guarantees.md names at least one test, and all named tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reference" / "guarantees.md"
NAMED = re.compile(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`")
ROWS = re.findall(r"^\| (?!promise |-)(.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("promise", "shown_by"), ROWS)
def test_guarantee_names_existing_tests(promise: str, shown_by: str) -> None:
    named = NAMED.findall(shown_by)
    assert named
    assert NAMED.sub("", shown_by).strip(" ,") == ""
    for file, test in named:
        assert f"\ndef {test}(" in (TESTS / file).read_text()


def test_guarantees_are_found() -> None:
    assert len(ROWS) > 40
