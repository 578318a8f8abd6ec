"""Several processes at one OUT: all end in the bytes of an uninterrupted build."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from decodeonce.errors import Stopped
from decodeonce.prep.build import Progress, Work, finish, make_plan, work
from decodeonce.prep.build.max_bad import Allowance
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import open_imagenet
from decodeonce.store import StorePaths, verify_store
from tests.images import tree_bytes
from tests.together.processes import Prep, build_words, prep

FINISHED = "another process has finished this build: there is no more to do"
ALLOWANCE = Allowance.parse("2")
ROW = 384 * 1024 * 3
LAST_SHARD = f"images-00006.npy@{4096 + ROW}"  # row 13, which is not there any more when the build is finished


def picture(row: int) -> str:
    return f"map:n{row // 5:08d}_{row % 5}.JPEG"


def test_two_builds_of_one_out_both_succeed(tree: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    words = [*build_words(tree, tmp_path / "store"), "--workers", 1]
    one = Prep(*words, folder=tmp_path, gates=(picture(6),))
    hold_one = one.reached(picture(6))
    other = Prep(*words, folder=tmp_path, gates=(picture(11),))
    hold_other = other.reached(picture(11))
    os.close(hold_one)
    ended = one.ended()
    os.close(hold_other)
    late = other.ended()
    assert (ended.code, late.code) == (0, 0), (ended, late)
    assert ended.told == ""
    assert FINISHED in late.told
    assert "13 rows written, 2 images skipped" in ended.said
    assert tree_bytes(tmp_path / "store") == undisturbed


HELD = [f"half:{LAST_SHARD}", f"wrote:{LAST_SHARD}", picture(13), picture(14)]
POINTS = [(command, gate) for command in ("work", "build") for gate in HELD]


@pytest.mark.parametrize(
    ("command", "gate"), [POINTS[0], *(pytest.param(*point, marks=pytest.mark.long) for point in POINTS[1:])]
)
def test_task_running_when_other_process_finishes_build(
    tree: Path, recipe: Recipe, undisturbed: dict[str, bytes], tmp_path: Path, command: str, gate: str
) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, recipe)
    words = build_words(tree, out) if command == "build" else ["work", out, "--max-bad", 2]
    held = Prep(*words, "--workers", 1, folder=tmp_path, gates=(gate,))
    hold = held.reached(gate)
    work(out, Work(workers=1, max_bad="2"))
    finish(out, ALLOWANCE)
    assert tree_bytes(out) == undisturbed
    os.close(hold)
    ended = held.ended()
    assert ended.code == 0, ended
    assert FINISHED in ended.told.splitlines()[-1]
    assert tree_bytes(out) == undisturbed


def test_task_killed_in_write_after_finish_leaves_rows_intact(
    tree: Path, recipe: Recipe, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    out, gate = tmp_path / "store", f"wrote:{LAST_SHARD}"
    make_plan(open_imagenet(tree), out, recipe)
    held = Prep("work", out, "--max-bad", 2, "--workers", 1, folder=tmp_path, gates=(gate,))
    hold = held.reached(gate)
    work(out, Work(workers=1, max_bad="2"))
    finish(out, ALLOWANCE)
    os.truncate(out / "images-00006.npy", 4096 + 2 * ROW)  # as that write, a moment later, would have left it
    os.killpg(held.process.pid, signal.SIGKILL)
    os.close(hold)
    assert held.ended().code == -signal.SIGKILL
    report = verify_store(out)
    assert (report.bad_rows, bool(report.problems)) == ([], True)
    assert finish(out, ALLOWANCE).count == 13
    assert tree_bytes(out) == undisturbed


@pytest.mark.long
@pytest.mark.parametrize(
    "gate", ["replace:labels.npy", "replace:store.json", "unlink:images-00007.npy", "unlink:plan.json"]
)
def test_build_paused_in_finish_while_other_build_ends(
    tree: Path, undisturbed: dict[str, bytes], tmp_path: Path, gate: str
) -> None:
    out = tmp_path / "store"
    words = [*build_words(tree, out), "--workers", 1]
    held = Prep(*words, folder=tmp_path, gates=(gate,))
    hold = held.reached(gate)
    other = prep(*words, folder=tmp_path)
    assert other.code == 0, other
    os.close(hold)
    ended = held.ended()
    assert (ended.code, ended.told) == (0, ""), ended
    assert tree_bytes(out) == undisturbed


def test_task_does_not_write_into_build_that_replaced_its_own(
    tree: Path, recipe: Recipe, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    out, gate = tmp_path / "store", picture(4)
    make_plan(open_imagenet(tree), out, replace(recipe, filter="box"))
    held = Prep("work", out, "--max-bad", 2, "--workers", 1, folder=tmp_path, gates=(gate,))
    hold = held.reached(gate)
    shutil.rmtree(out)
    make_plan(open_imagenet(tree), out, recipe)
    work(out, Work(workers=1, max_bad="2"))
    os.close(hold)
    ended = held.ended()
    assert ended.code == 75, ended
    assert "finished, or removed, by another process" in ended.told.splitlines()[-1]
    finish(out, ALLOWANCE)
    assert tree_bytes(out) == undisturbed


def test_removing_build_stops_its_tasks(tree: Path, recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, recipe)

    def remove(progress: Progress) -> None:
        if progress.new_rows and out.exists():
            out.rename(tmp_path / "elsewhere")

    with pytest.raises(Stopped, match="the build was finished, or removed, by another process"):
        work(out, Work(workers=1, max_bad="2"), remove)
    assert not out.exists()


def test_workers_end_when_their_parent_is_killed(
    tree: Path, recipe: Recipe, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    out, gate = tmp_path / "store", picture(7)
    held = Prep(*build_words(tree, out), "--workers", 2, folder=tmp_path, gates=(gate,))
    hold = held.reached(gate)
    os.kill(held.process.pid, signal.SIGKILL)
    assert held.ended().code == -signal.SIGKILL  # its pipes are closed, also by the worker that hangs in a picture
    os.close(hold)
    assert StorePaths(out).plan.exists()
    ended = prep(*build_words(tree, out), folder=tmp_path)
    assert (ended.code, ended.told) == (0, ""), ended
    assert tree_bytes(out) == undisturbed
