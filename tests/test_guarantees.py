"""Every promise of docs/reference/guarantees.md is in the table at its end, which names existing tests."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reference" / "guarantees.md").read_text()
PROMISES = re.findall(r"^- \*\*([A-Z]\d+)\.\*\* ", PAGE, re.MULTILINE)
ROWS = [line.replace("|", "").split() for line in PAGE.rpartition("|---|\n")[2].splitlines()]


@pytest.mark.parametrize(("promise", "file", "test"), ROWS)
def test_guarantee_names_existing_test(promise: str, file: str, test: str) -> None:
    assert promise in PROMISES
    assert f"\ndef {test.strip('`')}(" in (TESTS / file.strip("`")).read_text()


def test_every_guarantee_has_a_test() -> None:
    assert len(PROMISES) > 40
    assert len(set(PROMISES)) == len(PROMISES)
    assert set(PROMISES) == {promise for promise, _, _ in ROWS}
