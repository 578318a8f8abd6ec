"""Real processes that are told to end, or used up their time: the build goes on, or is gone on with."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from decodeonce.prep.build import Work, build
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import open_imagenet
from tests.cluster.until import until
from tests.images import encoded, make_tree, picture, tree_bytes

SLOW = 6
CPU_SECONDS = 2  # of which a worker's start takes half a second, a slow picture some 0.3


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small pictures and some that take a while: large progressive JPEGs."""
    root = make_tree(tmp_path_factory.mktemp("slow"), classes=2, per_class=2)
    slow = encoded(picture(400, 400).resize((4000, 4000)), progressive=True)
    for number in range(SLOW):
        (root / f"train/n00000001/slow{number}.JPEG").write_bytes(slow)
    return root


@pytest.fixture(scope="module")
def reference(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("reference") / "out"
    build(open_imagenet(tree), out, Recipe(height=1024, width=1024, shuffle_seed=0), Work(workers=2))
    return tree_bytes(out)


def command(tree: Path, out: Path) -> list[str]:
    build_ = [sys.executable, "-m", "decodeonce.cli", "build", "imagenet", str(tree), str(out)]
    return [*build_, "--size", "1024", "--workers", "1"]


def build_and_send(tree: Path, out: Path, signal_: int, whom: Callable[[int], int]) -> tuple[int, str]:
    """Send the signal to one process of a build that is at work; returns the build's exit status, and what it told."""
    process = subprocess.Popen(command(tree, out), stderr=subprocess.PIPE, text=True)
    journals = out / ".build/journals"
    while process.poll() is None and not any(path.stat().st_size for path in journals.glob("*.log")):
        os.sched_yield()
    os.kill(whom(process.pid), signal_)
    _, told = process.communicate(timeout=300)
    return process.returncode, without_progress(told)


def without_progress(told: str) -> str:
    """What was said beside the lines that a slow build prints every half a minute."""
    return "".join(line for line in told.splitlines(keepends=True) if " images/s, " not in line)


def worker_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize(
    "signal_",
    [
        signal.SIGXCPU,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_worker_killed_alone_is_replaced(
    signal_: signal.Signals, tree: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    assert build_and_send(tree, tmp_path / "out", signal_, worker_of) == (0, "")
    assert tree_bytes(tmp_path / "out") == reference


IMPATIENT = """
from decodeonce.cli import main
from decodeonce.prep.build import worker_pool as pool
pool.IMAGE_SECONDS, pool.HANGING_SECONDS, pool.TICK_SECONDS, pool.STRIKES = 2.0, 2.0, 0.02, 1
main()
"""


@pytest.mark.long
def test_paused_build_has_no_rejects(tree: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    impatient = [sys.executable, "-c", IMPATIENT, *command(tree, out)[3:]]
    process = subprocess.Popen(impatient, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: process.poll() is not None or [*out.glob(".build/journals/*.log")], "a worker at its first block")
    for _ in range(4):
        time.sleep(0.3)  # into a picture
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.killpg(process.pid, signal.SIGCONT)
    _, told = process.communicate(timeout=300)
    assert (process.returncode, without_progress(told)) == (0, "")
    assert tree_bytes(out) == reference


@pytest.mark.long
def test_build_out_of_time_says_so_and_resumes(tree: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    status, told = build_and_send(tree, tmp_path / "out", signal.SIGXCPU, lambda pid: pid)
    assert (status, told.count("\n")) == (75, 1)
    assert told.startswith("prep: stopped: SIGXCPU; what is done is kept: run the same command again")
    subprocess.run(command(tree, tmp_path / "out"), check=True)
    assert tree_bytes(tmp_path / "out") == reference


@pytest.mark.long
def test_builds_with_limited_processor_time_finish(tree: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, 60))

    out, statuses = tmp_path / "out", [75]
    while statuses[-1] == 75 and len(statuses) < 20:
        run = subprocess.run(command(tree, out), preexec_fn=limit, capture_output=True, text=True, check=False)
        statuses.append(run.returncode)
        assert without_progress(run.stderr).count("\n") == (run.returncode != 0), run.stderr
        assert run.returncode in (0, 75), run.stderr
    assert tree_bytes(out) == reference
