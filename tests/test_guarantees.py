"""Every promise of docs/reference/guarantees.md is in guarantees.md here, which names tests and when they run."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reference" / "guarantees.md").read_text()
TABLE = (TESTS / "guarantees.md").read_text()
PROMISES = re.findall(r"^- \*\*([A-Z]\d+)\.\*\* ", PAGE, re.MULTILINE)
ROWS = [line.strip("| ").split(" | ") for line in TABLE.rpartition("|---|\n")[2].splitlines()]
RUNS = {"mark.release": "before a release", "mark.long": "sampled", "": "after every change"}  # the first that fits


def runs(file: str, test: str) -> str:
    """Return when all cases of a test run; "" if there is no such test."""
    module = parse(file)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == test]
    marks = [node for node in module.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    texts = [ast.unparse(node) for function in functions for node in (*marks, *function.decorator_list)]
    # A decorator with parameters marks only some of the cases.
    all_marks = " ".join(text for text in texts if "parametrize" not in text)
    return next(when for mark, when in RUNS.items() if mark in all_marks) if functions else ""


@cache
def parse(file: str) -> ast.Module:
    return ast.parse((TESTS / file).read_text())


def test_guarantees_name_existing_tests_and_when_they_run() -> None:
    assert [row for row in ROWS if row[2] != runs(*row[1].replace("`", "").split())] == []


def test_every_guarantee_has_a_test() -> None:
    assert len(PROMISES) > 40
    assert len(set(PROMISES)) == len(PROMISES)
    assert set(PROMISES) == {promise for promise, *_ in ROWS}
