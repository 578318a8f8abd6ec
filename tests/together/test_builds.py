"""Several processes build to one OUT, and the result is byte-identical to an uninterrupted build."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from decodeonce.errors import Stopped
from decodeonce.prep.building import Progress, WorkSettings, finish, make_plan, work
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import open_imagenet
from decodeonce.store import StorePaths, verify_store
from tests.command import prep
from tests.images import tree_bytes
from tests.together.processes import Prep, build_arguments

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


def test_task_killed_in_write_after_finish_leaves_rows_intact(
    tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path
) -> None:
    out, gate = tmp_path / "store", f"wrote:{LAST_SHARD}"
    make_plan(open_imagenet(tree), out, recipe)
    paused = Prep("work", out, "--max-bad", 2, "--workers", 1, folder=tmp_path, gates=(gate,))
    hold = paused.reached(gate)
    work(out, WorkSettings(workers=1, max_bad="2"))
    finish(out, ALLOWANCE)
    os.truncate(out / "images-00006.npy", 4096 + 2 * ROW)  # as if the write had come just after the finish
    os.killpg(paused.process.pid, signal.SIGKILL)
    os.close(hold)
    assert paused.ended().returncode == -signal.SIGKILL
    report = verify_store(out)
    assert (report.bad_rows, bool(report.problems)) == ([], True)
    assert finish(out, ALLOWANCE).count == 13
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
    assert StorePaths(out).plan.exists()
    ended = prep(*build_arguments(tree, out))
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    assert tree_bytes(out) == expected_files
