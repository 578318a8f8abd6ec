"""The status of a build: its progress, and tasks that are silent or stopped."""

import os
import socket
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.build import Recipe, WorkSettings, finish, make_plan, work
from decodeonce.errors import BuildError
from decodeonce.prep.building.journal import FACTS, Author, BlockRecord, Journal, Journals, journal_line
from decodeonce.prep.building.status import read_status
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.sources.imagenet import open_imagenet
from tests.images import jpeg, make_tree


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A planned store of 15 blocks with one row of 3 MB each, one of them truncated, and one plan-time reject."""
    tree = make_tree(tmp_path / "src")
    (tree / "train/n00000000/n00000000_0.JPEG").write_bytes(jpeg()[:-200])
    (tree / "train/n00000001/gone.JPEG").symlink_to("nowhere")
    make_plan(open_imagenet(tree), tmp_path / "out", Recipe(height=1024, width=1024))
    return tmp_path / "out"


def test_started_tasks_are_listed_with_share_and_rate(planned: Path) -> None:
    status = read_status(planned)
    assert (status.finished, status.blocks, status.blocks_done, status.rows, status.rows_done) == (False, 15, 0, 15, 0)
    assert (status.state, status.rows_per_s, status.seconds_left, status.tasks) == ("planned", 0.0, None, [])
    assert [reject.source for reject in status.rejects] == ["train/n00000001/gone.JPEG"]
    for task in (1, 2):
        work(planned, WorkSettings(workers=1, task=task, tasks=3, max_bad="2"))
    status = read_status(planned)
    assert (status.blocks_done, status.rows_done) == (10, 10)
    found = [(t.task, t.tasks, t.blocks, t.blocks_done, t.state) for t in status.tasks]
    assert found == [(1, 3, 5, 5, "done"), (2, 3, 5, 5, "done")]
    assert {task.host for task in status.tasks} == {socket.gethostname()}
    assert sum(task.rows_per_s for task in status.tasks) == pytest.approx(status.rows_per_s)
    assert status.rows_per_s > 0
    assert status.seconds_left == pytest.approx(5 / status.rows_per_s)


def journal_of_killed_task(planned: Path) -> Path:
    """Run a task, and return its journal as after a kill during the second line."""
    work(planned, WorkSettings(workers=1, task=0, tasks=5, max_bad="2"))
    (journal,) = BuildPaths(planned).journals.iterdir()
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
    work(planned, WorkSettings(workers=1, max_bad="2"))
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
    journals = BuildPaths(planned).journals
    for name in ("2of3-elsewhere-1-ab.log", "0of3-unfinished.tmp"):  # the second is no journal
        (journals / name).mkdir()  # opening it would fail
    for task, tasks in ((0, 3), (1, 3), (1, 9)):
        work(planned, WorkSettings(workers=1, task=task, tasks=tasks, max_bad="2"))
    for task, tasks in ((2, 3), (1, 2), (0, 1)):
        with pytest.raises(BuildError, match=r"2of3-elsewhere-1-ab\.log: Is a"):
            work(planned, WorkSettings(workers=1, task=task, tasks=tasks, max_bad="2"))


# ---- Journals: which lines are read, ignored and resolved


def write(folder: Path, *records: BlockRecord, task: int = 0, tasks: int = 8) -> Path:
    before = set(folder.iterdir())
    writer = Journal(folder, task, tasks)
    for record in records:
        writer.append(journal_line(record))
    writer.close()
    (path,) = set(folder.iterdir()) - before
    return path


def test_records_round_trip(tmp_path: Path) -> None:
    facts = np.array([(2**64 - 1, 5, 640, 480, 6), (0, 0, 0, 0, 0)], FACTS)
    record = BlockRecord(3, facts, rejects=[(7, "bad\ttab\nline", "rejected")], boxes=[(6, "1,2,3,4")], sums=[1, 2, 3])
    before = time.time()
    path = write(tmp_path, record, BlockRecord(1), task=5)
    journals = Journals(tmp_path)
    assert sorted(journals.lines) == [1, 3]
    (found,) = journals.records([3, 4])
    assert found.facts.tolist() == facts.tolist()
    assert journal_line(found, 0.0) == journal_line(record, 0.0)
    assert journals.authors == {path: Author(5, 8, socket.gethostname(), os.getpid())}
    assert {block: line.path for block, line in journals.lines.items()} == {1: path, 3: path}
    assert all(before - 0.001 <= line.time <= time.time() + 0.001 for line in journals.lines.values())
    assert 2 not in journals.lines


def test_clock_before_1970_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: -86400.5)
    write(tmp_path, BlockRecord(3))
    assert sorted(Journals(tmp_path).lines) == [3]


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), bit=st.integers(0, 7))
def test_line_of_bad_digest_is_ignored(tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("journals")
    path = write(folder, BlockRecord(0, rejects=[(0, "a" * 100, "left out")]), BlockRecord(1))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    assert sorted(Journals(folder).lines) == ([0] if cut >= first else [])
    damaged = bytearray(whole)
    damaged[flip % len(whole)] ^= 1 << bit
    path.write_bytes(damaged)
    assert Journals(folder).lines.keys() < {0, 1}


def test_each_journal_is_opened_once_and_alone(tmp_path: Path) -> None:
    records = [BlockRecord(block, crashes=block) for block in range(35)]
    for first in range(7):  # like seven workers that take turns
        write(tmp_path, *records[first::7])
    journals, folder, found = Journals(tmp_path), Path("/proc/self/fd"), []
    before = len(list(folder.iterdir()))
    for record in journals.records(range(1, 35)):
        found.append((record.block, record.crashes))
        assert len(list(folder.iterdir())) == before + 1
    assert sorted(found) == [(block, block) for block in range(1, 35)]
    assert sum(a % 7 != b % 7 for (a, _), (b, _) in pairwise(found)) == 6
    assert len(list(folder.iterdir())) == before
