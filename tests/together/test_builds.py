"""Several processes build to one OUT, and the result is byte-identical to an uninterrupted build."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decodeonce.build import Progress, Recipe, WorkSettings, build, finish, is_built, make_plan, plan_unless_built, work
from decodeonce.errors import BuildError, Stopped, StoreError
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.store import open_store, stage_store
from tests.command import prep
from tests.images import make_tree, tree_bytes
from tests.together.processes import ROOT, Prep, build_arguments

FINISHED = "another process finished this build; nothing left to do"
ALLOWANCE = "2"
ROW = 384 * 1024 * 3
LAST_SHARD = f"images-00006.npy@{4096 + ROW}"  # row 13, which a finished build has moved elsewhere


def image_gate(row: int) -> str:
    return f"map:n{row // 5:08d}_{row % 5}.JPEG"


def test_two_builds_of_one_out_both_succeed(tree: Path, expected_files: dict[str, bytes], tmp_path: Path) -> None:
    arguments = [*build_arguments(tree, tmp_path / "store"), "--workers", 1]
    first = Prep(*arguments, folder=tmp_path, gates=(image_gate(6),))
    first_gate = first.reached(image_gate(6))
    second = Prep(*arguments, folder=tmp_path, gates=(image_gate(11),))
    second_gate = second.reached(image_gate(11))
    os.close(first_gate)
    first_ended = first.ended()
    os.close(second_gate)
    second_ended = second.ended()
    assert (first_ended.returncode, second_ended.returncode) == (0, 0), (first_ended, second_ended)
    assert first_ended.stderr == ""
    assert FINISHED in second_ended.stderr
    assert "2 of 15 images were rejected" in first_ended.stdout
    assert tree_bytes(tmp_path / "store") == expected_files


GATES = [f"half:{LAST_SHARD}", f"wrote:{LAST_SHARD}", image_gate(13), image_gate(14)]
CASES = [(command, gate) for command in ("work", "build") for gate in GATES]


@pytest.mark.parametrize(
    ("command", "gate"), [CASES[0], *(pytest.param(*case, marks=pytest.mark.long) for case in CASES[1:])]
)
def test_task_running_when_other_process_finishes_build(
    tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path, command: str, gate: str
) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, recipe)
    arguments = build_arguments(tree, out) if command == "build" else ["work", out, "--max-bad", 2]
    paused = Prep(*arguments, "--workers", 1, folder=tmp_path, gates=(gate,))
    hold = paused.reached(gate)
    work(out, WorkSettings(workers=1, max_bad="2"))
    finish(out, ALLOWANCE)
    assert tree_bytes(out) == expected_files
    os.close(hold)
    ended = paused.ended()
    assert ended.returncode == 0, ended
    assert FINISHED in ended.stderr.splitlines()[-1]
    assert tree_bytes(out) == expected_files


@pytest.mark.long
@pytest.mark.parametrize(
    "gate", ["replace:labels.npy", "replace:store.json", "unlink:images-00007.npy", "unlink:plan.json"]
)
def test_build_paused_in_finish_while_other_build_ends(
    tree: Path, expected_files: dict[str, bytes], tmp_path: Path, gate: str
) -> None:
    out = tmp_path / "store"
    arguments = [*build_arguments(tree, out), "--workers", 1]
    paused = Prep(*arguments, folder=tmp_path, gates=(gate,))
    hold = paused.reached(gate)
    other = prep(*arguments)
    assert other.returncode == 0, other
    os.close(hold)
    ended = paused.ended()
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    assert tree_bytes(out) == expected_files


def test_task_does_not_write_into_build_that_replaced_its_own(
    tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path
) -> None:
    out, gate = tmp_path / "store", image_gate(4)
    make_plan(open_imagenet(tree), out, replace(recipe, filter="box"))
    paused = Prep("work", out, "--max-bad", 2, "--workers", 1, folder=tmp_path, gates=(gate,))
    hold = paused.reached(gate)
    shutil.rmtree(out)
    make_plan(open_imagenet(tree), out, recipe)
    work(out, WorkSettings(workers=1, max_bad="2"))
    os.close(hold)
    ended = paused.ended()
    assert ended.returncode == 75, ended
    assert "another process finished or removed the build" in ended.stderr.splitlines()[-1]
    finish(out, ALLOWANCE)
    assert tree_bytes(out) == expected_files


def test_removing_build_stops_its_tasks(tree: Path, recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, recipe)

    def remove(progress: Progress) -> None:
        if progress.new_rows and out.exists():
            out.rename(tmp_path / "moved")

    with pytest.raises(Stopped, match=r"another process (finished or removed the build|removed it: run)"):
        work(out, WorkSettings(workers=1, max_bad="2"), remove)
    assert not out.exists()


def test_workers_end_when_their_parent_is_killed(
    tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path
) -> None:
    out, gate = tmp_path / "store", image_gate(7)
    paused = Prep(*build_arguments(tree, out), "--workers", 2, folder=tmp_path, gates=(gate,))
    hold = paused.reached(gate)
    os.kill(paused.process.pid, signal.SIGKILL)
    assert paused.ended().returncode == -signal.SIGKILL  # every worker has closed its pipes
    os.close(hold)
    assert BuildPaths(out).plan.exists()
    ended = prep(*build_arguments(tree, out))
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    assert tree_bytes(out) == expected_files


# ---- Repeat a command while it runs or after its end, and start a different build at the path of a finished store


@pytest.fixture
def store(tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path) -> Path:
    out = tmp_path / "store"
    for name, data in expected_files.items():
        out.mkdir(exist_ok=True)
        (out / name).write_bytes(data)
    return out


TASK = ("--task", 1, "--tasks", 3)


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


def test_repeated_build_cleans_up_a_killed_finish(tree: Path, store: Path, expected_files: dict[str, bytes]) -> None:
    for command in (build_arguments(tree, store), ["finish", store]):
        (store / ".build/journals").mkdir(parents=True)
        (store / ".build/plan.json").touch()
        os.truncate(store / "images-00006.npy", 4096 + 2 * ROW)
        (store / "images-00007.npy").write_bytes(b"left over")
        assert prep(*command).returncode == 0
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
    with pytest.raises(BuildError, match=rf"{other} differs from its source in names, .*: 15 images here, 13 rows in"):
        build(open_imagenet(other), store, recipe)
    stage_store(open_store(store), tmp_path / "part", rows=range(5))
    with pytest.raises(BuildError, match="part: already holds a staged part of a store; choose another OUT"):
        build(source, tmp_path / "part", recipe)
    os.truncate(store / "images-00003.npy", 5000)
    with pytest.raises(StoreError, match=r"images-00003.npy: 5000 bytes, expected"):
        build(source, store, recipe)


MOMENTS = [
    ("build", "check_output_dir"),  # before a plan is looked for
    ("build", "write_plan"),  # before this process publishes its own
    ("build", "reserve_shards"),
    ("output_dir", "planned_shard"),  # just before it creates the shards
]


@pytest.mark.parametrize(("module", "name"), MOMENTS)
def test_plan_does_not_touch_store_finished_meanwhile(
    tree: Path,
    recipe: Recipe,
    expected_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    name: str,
) -> None:
    source, out, before = open_imagenet(tree), tmp_path / "store", list[object]()
    patched = sys.modules[f"decodeonce.prep.building.{module}"]
    call = vars(patched)[name]

    def call_after_another_build(*arguments: Any) -> Any:
        if not before:
            before.append(name)
            build(source, out, recipe, WorkSettings(workers=1, max_bad="2"))
        return call(*arguments)

    monkeypatch.setattr(patched, name, call_after_another_build)
    assert plan_unless_built(source, out, recipe) is None
    assert before
    assert tree_bytes(out) == expected_files


@pytest.mark.parametrize("times", [4, pytest.param(300, marks=pytest.mark.long)])
def test_simultaneous_finishes_and_plans_make_one_store(times: int) -> None:
    command = [sys.executable, "-m", "tests.together.at_once", str(times)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == []
