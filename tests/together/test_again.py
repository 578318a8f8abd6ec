"""Repeat a command while it runs or after its end, and start a different build at the path of a finished store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decodeonce.errors import BuildError, StoreError
from decodeonce.prep.building import WorkSettings, build, finish, is_built, make_plan, plan_unless_built, work
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import open_imagenet
from decodeonce.store import open_store, stage_store
from tests.command import prep
from tests.images import make_tree, tree_bytes
from tests.together.processes import ROOT, build_arguments

ALLOWANCE = "2"
ROW = 384 * 1024 * 3


@pytest.fixture
def store(tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path) -> Path:
    out = tmp_path / "store"
    for name, data in expected_files.items():
        out.mkdir(exist_ok=True)
        (out / name).write_bytes(data)
    return out


TASK = ("--task", 1, "--tasks", 3)
COUNTS = r"15 in 3 classes; the store has 13 rows in 3 classes, 2 images skipped \(digest is [0-9a-f]{16}"


def modification_times(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in [root, *root.iterdir()]}


def test_repeated_job_after_the_end_has_nothing_to_do(tree: Path, store: Path) -> None:
    before, build_command = modification_times(store), build_arguments(tree, store)
    plan = ["plan", *build_command[1:]]
    for command in (build_command, [*build_command, "--dry-run"], plan, ["work", store, *TASK], ["finish", store]):
        result = prep(*command)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.endswith(f"{store}: already finished, nothing to do\n")
    assert modification_times(store) == before


def test_repeated_build_cleans_up_after_killed_finish(
    tree: Path, store: Path, expected_files: dict[str, bytes]
) -> None:
    (store / ".build/journals").mkdir(parents=True)
    os.truncate(store / "images-00006.npy", 4096 + 2 * ROW)
    assert prep(*build_arguments(tree, store)).returncode == 0
    assert tree_bytes(store) == expected_files
    assert not (store / ".build").exists()


def test_error_names_differences_from_finished_store(
    tree: Path, recipe: Recipe, store: Path, expected_files: dict[str, bytes], tmp_path: Path
) -> None:
    source = open_imagenet(tree)
    assert is_built(source, store, recipe)
    assert not is_built(source, tmp_path / "nowhere", recipe)
    with pytest.raises(BuildError, match=r"already holds a different finished store: --filter is box, the store"):
        build(source, store, replace(recipe, filter="box"))
    (tmp_path / "other").mkdir()
    other = make_tree(tmp_path / "other", seed=1)
    with pytest.raises(
        BuildError, match=rf"{other} lists different images .*, boxes or values\) than it was built from: {COUNTS}"
    ):
        build(open_imagenet(other), store, recipe)
    stage_store(open_store(store), tmp_path / "part", rows=range(5))
    with pytest.raises(BuildError, match="part: already holds a staged part of a store; choose another OUT"):
        build(source, tmp_path / "part", recipe)
    os.truncate(store / "images-00003.npy", 5000)
    with pytest.raises(StoreError, match=r"images-00003.npy: 5000 bytes, expected"):
        build(source, store, recipe)


def test_plan_does_not_touch_store_finished_meanwhile(
    tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, source = sys.modules["decodeonce.prep.building.build"], open_imagenet(tree)
    check, out, calls = vars(module)["check_output_dir"], tmp_path / "store", 0

    def check_then_finish(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        check(*arguments)
        if calls == at:
            finish(out, ALLOWANCE)

    for at in (1, 2):  # before and after the plan takes the lock
        calls = 0
        make_plan(source, out, recipe)
        work(out, WorkSettings(workers=2, max_bad="2"))
        with monkeypatch.context() as patched:
            patched.setattr(module, "check_output_dir", check_then_finish)
            assert plan_unless_built(source, out, recipe) is None
        assert calls >= at
        assert tree_bytes(out) == expected_files
        shutil.rmtree(out)


@pytest.mark.parametrize("times", [5, pytest.param(300, marks=pytest.mark.long)])
def test_simultaneous_finishes_and_plans_make_one_store(times: int) -> None:
    command = [sys.executable, "-m", "tests.together.at_once", str(times)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == []
