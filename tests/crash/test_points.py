"""Kills, failing disks, full disks and power losses at every disk call in turn (see the package's docstring)."""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.crash.double import KINDS
from tests.disks import small_disk

ROOT = Path(__file__).parents[2]
SAMPLE = (
    *("npy:faults:9", "npy:power:3", "npy:again:1", "hdf5:faults:2", "boxes:faults:2"),
    *("convert:faults:2", "stage:faults:5", "repair:faults:7"),
    *("stage:again:1", "column:faults:3"),
)
# One process per line, the longest first.
ALL = (
    ("npy:faults",),
    ("hdf5:faults", "hdf5:power:200"),
    ("npy:power", "npy:again"),
    ("convert:faults", "convert:power:100"),
    ("stage:faults", "stage:power", "stage:again"),
    ("repair:faults", "column:faults", "column:many"),
    ("boxes:faults:150", "boxes:power:80", "large:many:50"),
)
AT_LEAST = 2000


def crash(*what: str) -> dict[str, Any]:
    """Return the number of tested points by kind, and the failures."""
    command = [sys.executable, "-m", "tests.crash", *what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr  # otherwise it raised an exception
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_sample_of_all_points() -> None:
    result = crash(*SAMPLE)
    assert result["failures"] == []
    assert sum(result["tried"].values()) > 30


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_every_point() -> None:
    with ThreadPoolExecutor(2) as processes:
        results = list(processes.map(lambda what: crash(*what), ALL))
    tried = Counter[str]()
    for result in results:
        tried.update(result["tried"])
    assert [failure for result in results for failure in result["failures"]] == []
    assert sum(tried.values()) >= AT_LEAST
    assert {f"npy: {kind}" for kind in KINDS} <= set(tried)


@pytest.mark.parametrize("at_most", [":2", pytest.param("", marks=pytest.mark.long)])
def test_real_disk_that_is_full_at_any_moment(at_most: str, tmp_path: Path) -> None:
    with small_disk(tmp_path, "1m"):  # skips the test if no disk can be mounted
        result = crash(*(f"{what}{at_most}" for what in ("npy:full", "npy:sparse", "hdf5:full", "hdf5:sparse")))
    assert result["failures"] == []


@pytest.mark.parametrize("ignored", ["fsync", pytest.param("fdatasync", marks=pytest.mark.long)])
def test_disk_that_ignores_flushes_is_detected(ignored: str) -> None:
    assert crash("npy:power:8", "--ignore", ignored)["failures"]
