"""Real processes that receive signals or reach their time limit: the build continues or can be resumed."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from decodeonce.prep.building.build import build
from decodeonce.prep.building.pool import WorkSettings
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.imagenet import open_imagenet
from tests.cluster.until import until
from tests.images import encoded, make_image, make_tree, tree_bytes

pytestmark = pytest.mark.long

SLOW = 6
CPU_SECONDS = 2  # a worker's start takes half a second, a slow image about 0.3


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small images, and large progressive JPEGs that take a while to decode."""
    root = make_tree(tmp_path_factory.mktemp("slow"), classes=2, per_class=2)
    slow = encoded(make_image(400, 400).resize((4000, 4000)), progressive=True)
    for number in range(SLOW):
        (root / f"train/n00000001/slow{number}.JPEG").write_bytes(slow)
    return root


@pytest.fixture(scope="module")
def reference(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("reference") / "out"
    build(open_imagenet(tree), out, Recipe(height=1024, width=1024, shuffle_seed=0), WorkSettings(workers=2))
    return tree_bytes(out)


def command(tree: Path, out: Path) -> list[str]:
    build_ = [sys.executable, "-m", "decodeonce.cli", "build", "imagenet", str(tree), str(out)]
    return [*build_, "--size", "1024", "--workers", "1"]


def build_and_signal(tree: Path, out: Path, signal_: int, pid_of: Callable[[int], int]) -> tuple[int, str]:
    """Send a signal to one process of a running build; return the build's exit status and standard error."""
    process = subprocess.Popen(command(tree, out), stderr=subprocess.PIPE, text=True)
    journals = out / ".build/journals"
    while process.poll() is None and not any(path.stat().st_size for path in journals.glob("*.log")):
        os.sched_yield()
    os.kill(pid_of(process.pid), signal_)
    _, stderr = process.communicate(timeout=300)
    return process.returncode, without_progress(stderr)


def without_progress(stderr: str) -> str:
    """Remove the progress lines that a slow build prints every 30 seconds."""
    return "".join(line for line in stderr.splitlines(keepends=True) if " images/s, " not in line)


def worker_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize("signal_", [signal.SIGXCPU, signal.SIGTERM, signal.SIGKILL])
def test_worker_killed_alone_is_replaced(
    signal_: signal.Signals, tree: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    assert build_and_signal(tree, tmp_path / "out", signal_, worker_of) == (0, "")
    assert tree_bytes(tmp_path / "out") == reference


IMPATIENT = """
from decodeonce.cli import main
from decodeonce.prep.building import pool
pool.IMAGE_SECONDS, pool.HANGING_SECONDS, pool.TICK_SECONDS, pool.STRIKES = 2.0, 2.0, 0.02, 1
main()
"""


def test_paused_build_has_no_rejects(tree: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    impatient = [sys.executable, "-c", IMPATIENT, *command(tree, out)[3:]]
    process = subprocess.Popen(impatient, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: process.poll() is not None or [*out.glob(".build/journals/*.log")], "a worker at its first block")
    for _ in range(4):
        time.sleep(0.3)  # until a worker decodes an image
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.killpg(process.pid, signal.SIGCONT)
    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, without_progress(stderr)) == (0, "")
    assert tree_bytes(out) == reference


def test_build_out_of_time_says_so_and_resumes(tree: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    status, stderr = build_and_signal(tree, tmp_path / "out", signal.SIGXCPU, lambda pid: pid)
    assert (status, stderr.count("\n")) == (75, 1)
    assert stderr.startswith("prep: stopped: SIGXCPU; run the same command again; builds and staging then resume")
    subprocess.run(command(tree, tmp_path / "out"), check=True)
    assert tree_bytes(tmp_path / "out") == reference


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
