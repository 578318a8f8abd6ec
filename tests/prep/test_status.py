"""The status of a build: its progress, and tasks that are silent or stopped."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from decodeonce.prep.building import WorkSettings, finish, make_plan, work
from decodeonce.prep.building.journal import Journals
from decodeonce.prep.building.status import read_status
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import open_imagenet
from decodeonce.store import StorePaths
from tests.images import jpeg, make_tree


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A planned store of 15 blocks with one row of 3 MB each, one of them truncated, and one plan-time reject."""
    tree = make_tree(tmp_path / "src")
    (tree / "train/n00000000/n00000000_0.JPEG").write_bytes(jpeg()[:-200])
    (tree / "train/n00000001/gone.JPEG").symlink_to("nowhere")
    make_plan(open_imagenet(tree), tmp_path / "out", Recipe(height=1024, width=1024))
    return tmp_path / "out"


def test_build_that_has_not_started(planned: Path) -> None:
    status = read_status(planned)
    assert (status.finished, status.blocks, status.blocks_done, status.rows, status.rows_done) == (False, 15, 0, 15, 0)
    assert (status.state, status.rows_per_s, status.seconds_left, status.tasks) == ("planned", 0.0, None, [])
    assert [reject.source for reject in status.rejects] == ["train/n00000001/gone.JPEG"]


def test_started_tasks_are_listed_with_share_and_rate(planned: Path) -> None:
    work(planned, WorkSettings(workers=2, task=1, tasks=3, max_bad="2"))
    work(planned, WorkSettings(workers=1, task=2, tasks=3, max_bad="2"))
    status = read_status(planned)
    assert (status.blocks_done, status.rows_done) == (10, 10)
    assert [(t.task, t.tasks, t.blocks, t.blocks_done, t.state) for t in status.tasks] == [
        (1, 3, 5, 5, "done"),
        (2, 3, 5, 5, "done"),
    ]
    assert {task.host for task in status.tasks} == {socket.gethostname()}
    assert sum(task.rows_per_s for task in status.tasks) == pytest.approx(status.rows_per_s)
    assert status.rows_per_s > 0
    assert status.seconds_left == pytest.approx(5 / status.rows_per_s)


def journal_of_killed_task(planned: Path) -> Path:
    """Run a task, and return its journal as after a kill during the second line."""
    work(planned, WorkSettings(workers=1, task=0, tasks=5, max_bad="2"))
    (journal,) = StorePaths(planned).journals.iterdir()
    whole = journal.read_bytes()
    journal.write_bytes(whole[: whole.index(b"\n") + 10])
    ended = subprocess.Popen(["true"])
    ended.wait()
    return journal.rename(str(journal).replace(f"-{os.getpid()}-", f"-{ended.pid}-"))


def test_task_that_stops_writing_is_silent_until_its_share_is_done(planned: Path) -> None:
    journal = journal_of_killed_task(planned)
    journal = journal.rename(str(journal).replace(f"-{socket.gethostname()}-", "-elsewhere-"))
    status = read_status(planned)
    (task,) = status.tasks
    assert (status.state, task.state, task.blocks_done, task.blocks) == ("working", "working", 1, 3)
    then = journal.stat().st_mtime - 1000
    os.utime(journal, (then, then))
    status = read_status(planned)
    (task,) = status.tasks
    assert (status.state, task.state, round(task.seconds_quiet, -2)) == ("stopped", "silent", 1000)
    work(planned, WorkSettings(max_bad="2"))
    status = read_status(planned)
    assert (status.state, [task.state for task in status.tasks]) == ("decoded", ["done", "done"])
    finish(planned, "2")
    status = read_status(planned)
    assert (status.finished, status.state, status.rows, status.tasks) == (True, "finished", 14, [])
    assert status.rows_done == 14
    assert len(status.rejects) == 2


def test_task_whose_process_ended_on_this_node_is_stopped(planned: Path) -> None:
    journal = journal_of_killed_task(planned)
    status = read_status(planned)
    (task,) = status.tasks
    assert (status.state, task.state) == ("stopped", "stopped")
    assert (status.rows_per_s, task.rows_per_s, status.seconds_left) == (0.0, 0.0, None)
    host, pid = (author := Journals(journal.parent).authors[journal]).host, author.pid
    journal.rename(str(journal).replace(f"-{host}-{pid}-", f"-{host}-{os.getpid()}-"))
    assert read_status(planned).state == "working"


def test_task_reads_only_journals_that_can_hold_its_blocks(planned: Path) -> None:
    journals = StorePaths(planned).journals
    for name in ("2of3-elsewhere-1-ab.log", "0of3-unfinished.tmp"):  # the second is no journal
        (journals / name).mkdir()  # opening it would fail
    for task, tasks in ((0, 3), (1, 3), (1, 9)):
        work(planned, WorkSettings(workers=1, task=task, tasks=tasks, max_bad="2"))
    for task, tasks in ((2, 3), (1, 2), (0, 1)):
        with pytest.raises(IsADirectoryError):
            work(planned, WorkSettings(workers=1, task=task, tasks=tasks, max_bad="2"))
