"""Builds by jobs and ranks have the same bytes if a node is lost or tasks overlap."""

import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from decodeonce.prep.building.status import read_status
from tests.cluster.builds import BLOCKS, PREP, digests, stop_in_the_middle
from tests.cluster.launchers import MPIEXEC, mpiexec
from tests.cluster.slurm import Cluster
from tests.cluster.until import until

# The first test on a fresh machine installs Slurm.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def out(tree: Path, tmp_path: Path) -> Path:
    out = tmp_path / "store"
    subprocess.run([*PREP, "plan", "imagenet", str(tree), str(out)], check=True)
    assert read_status(out).blocks == BLOCKS
    return out


def test_lost_node_returns_with_its_old_processes(cluster: Cluster, out: Path, uninterrupted: dict[str, str]) -> None:
    job = cluster.submit(
        f"exec {shlex.join([*PREP, 'work', str(out), '--workers', '1'])} --task 0 --tasks 1", "--requeue"
    )
    old = stop_in_the_middle(cluster, out, job)
    node = cluster.facts(job)["NodeList"]
    cluster.disconnect(node)
    try:
        cluster.wait(job)
        facts = cluster.facts(job)
        assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), cluster.output()
        assert facts["NodeList"] != node
        cluster.run(*PREP, "finish", out)
        assert digests(out) == uninterrupted
        assert cluster.signal(job, signal.SIGCONT) == old
        until(lambda: not cluster.signal(job, signal.SIGCONT), "the end of the old processes")
    finally:
        cluster.resume(node)
    assert digests(out) == uninterrupted


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("mpi", list(MPIEXEC))
def test_ranks_of_mpiexec_share_a_build(mpi: str, out: Path, uninterrupted: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    # This task runs at the same time with another number of tasks, so some blocks are done twice.
    shared = subprocess.Popen([*PREP, "work", out, "--task", "2", "--tasks", "3", "--workers", "1"])
    # Wait for its first block; otherwise mpiexec may leave no block for it.
    until(lambda: read_status(out).tasks, "the first block of the other task")
    (tmp_path / "hosts").write_text("one\nanother\n")
    command = f"PBS_NODEFILE={shlex.quote(str(tmp_path))}/hosts exec {shlex.join(PREP)} work"
    mpiexec(mpi, 2, "sh", "-c", f'{command} "$0" --workers 1 >> {shlex.quote(str(log))} 2>&1', str(out))
    assert shared.wait(timeout=60) == 0
    for rank in range(2):
        assert f"{out}: task {rank} of 2 ({'PMI' if mpi == 'MPICH' else mpi})\n" in log.read_text()
    assert log.read_text().count("warning: 2 of 2 ranks run on this host, but the PBS job has 2 hosts") == 1
    status = read_status(out)
    assert {(task.task, task.tasks) for task in status.tasks} == {(0, 2), (1, 2), (2, 3)}
    assert status.blocks_done == BLOCKS
    subprocess.run([*PREP, "finish", out], check=True)
    assert digests(out) == uninterrupted
