"""Jumping clocks and files with any date do not change the bytes of a store, and the status of a build makes sense."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from decodeonce.build import Recipe, WorkSettings, build, finish, make_plan, work
from decodeonce.prep.building.journal import Journals
from decodeonce.prep.building.status import Status, read_status
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.sources.imagenet import open_imagenet
from tests.images import tree_bytes
from tests.packages import need
from tests.together.processes import ROOT

ALLOWANCE = "2"
YEAR = 365.25 * 86400


@pytest.fixture(scope="module")
def faketime() -> str:
    """The program that runs another program with a faked clock."""
    need({"faketime": "faketime"})
    return shutil.which("faketime") or ""


def prep_at(faketime: str, clock: str, *arguments: object) -> str:
    """Run `prep` with this clock, in the notation of faketime(1). File times and the monotonic clock are not faked."""
    environ = {**os.environ, "NO_FAKE_STAT": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    command = [faketime, "-f", clock, sys.executable, "-m", "decodeonce.cli", *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def assert_makes_sense(status: Status, done: int) -> None:
    assert (status.blocks_done, status.rows_done) == (done, done)
    assert 0 <= status.rows_per_s <= done
    assert status.seconds_left is None or status.seconds_left >= 0
    for task in status.tasks:
        assert task.rows_per_s >= 0
        assert task.seconds_quiet >= 0


@pytest.mark.long
def test_jumping_clocks_do_not_change_bytes(
    faketime: str, tree: Path, recipe: Recipe, expected_files: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, recipe)
    work_command = ["work", out, "--max-bad", 2, "--workers", 1, "--tasks", 3]
    prep_at(faketime, "-0 x-1000000", *work_command, "--task", 0)  # the clock runs back 11 days per second
    assert_makes_sense(read_status(out), 5)
    prep_at(faketime, "+30y", *work_command, "--task", 1)
    assert_makes_sense(read_status(out), 10)
    times = [line.time for line in Journals(BuildPaths(out).journals).lines.values()]
    assert times[4] < times[0] < time.time() + YEAR < time.time() + 29 * YEAR < times[5]
    work(out, WorkSettings(workers=1, max_bad="2"))
    assert_makes_sense(read_status(out), 15)
    finish(out, ALLOWANCE)
    assert tree_bytes(out) == expected_files


def test_status_is_right_at_any_time(
    recipe: Recipe, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "store"
    make_plan(open_imagenet(tree), out, recipe)
    work(out, WorkSettings(workers=1, task=0, tasks=5, max_bad="2"))
    real = time.time()
    for years in (-60, -1, 0, 1, 60):
        monkeypatch.setattr(time, "time", lambda now=real + years * YEAR: now)
        status = read_status(out)
        assert_makes_sense(status, 3)
        assert (status.rows_per_s > 0) == (years == 0)
        assert (status.seconds_left is None) == (years != 0)


@pytest.fixture
def any_date() -> Iterator[Path]:
    """A folder on a file system that accepts any date, if there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def test_files_with_any_date_are_read(
    tree: Path, recipe: Recipe, expected_files: dict[str, bytes], any_date: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tree, any_date / "src"))
    # Some of these are after the year 2262.
    seconds = [0, -1, 1, -(10**9), 4 * 10**9, 2**32, 2**33, 2**34, -(2**34), 10**11, 10**12]
    for path, second in zip(sorted(copy.rglob("*.JPEG")), [*seconds, *seconds], strict=False):
        os.utime(path, ns=(second * 10**9 + 1,) * 2)
    build(open_imagenet(copy), tmp_path / "store", recipe, WorkSettings(workers=1, max_bad="2"))
    assert tree_bytes(tmp_path / "store") == expected_files
