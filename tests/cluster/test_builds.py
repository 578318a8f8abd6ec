"""Builds as jobs of a cluster: the same bytes whatever becomes of the jobs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from decodeonce.prep.build.status import read_status
from tests.cluster.builds import BLOCKS, PREP, assert_finished, digests, prep, stop_in_the_middle, work
from tests.cluster.launchers import MPIEXEC, mpiexec
from tests.cluster.slurm import Cluster
from tests.cluster.until import until

# The first test on a fresh machine installs Slurm.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def out(tree: Path, tmp_path: Path) -> Path:
    """A store that is planned."""
    return planned(tree, tmp_path / "store")


@pytest.fixture(scope="module", autouse=True)
def limited(cluster: Cluster, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store and a job amid its work whose time is up: Slurm looks every 30 s, and other tests run meanwhile."""
    out = planned(tree, tmp_path_factory.mktemp("limited") / "store")
    job = cluster.submit(work(out))
    stop_in_the_middle(cluster, out, job)
    cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now")
    return out, job


def planned(tree: Path, out: Path) -> Path:
    subprocess.run([*PREP, "plan", "imagenet", str(tree), str(out)], check=True)
    assert read_status(out).blocks == BLOCKS
    return out


def test_plan_array_and_finish_as_a_chain(
    cluster: Cluster, tree: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    plan = cluster.submit(prep("plan", "imagenet", tree, out))
    array = cluster.submit(work(out, 4), "--array=0-3", f"--dependency=afterok:{plan}", "--kill-on-invalid-dep=yes")
    finish = cluster.submit(prep("finish", out), f"--dependency=afterok:{array}", "--kill-on-invalid-dep=yes")
    cluster.wait(plan, array, finish)
    assert cluster.states(finish) == ["COMPLETED"], cluster.output()
    assert digests(out) == undisturbed


def test_an_element_whose_processes_are_killed_is_run_again(
    cluster: Cluster, out: Path, undisturbed: dict[str, str]
) -> None:
    array = cluster.submit(work(out, 2), "--array=0-1")
    stop_in_the_middle(cluster, out, f"{array}_1", task=1)
    cluster.signal(f"{array}_1", signal.SIGKILL)
    cluster.wait(array)
    assert sorted(cluster.states(array)) == ["COMPLETED", "FAILED"], cluster.output()
    cluster.wait(cluster.submit(work(out, 2), "--array=1"))
    assert_finished(cluster, out, undisturbed)


def test_a_job_that_is_cancelled_then_the_same_again(cluster: Cluster, out: Path, undisturbed: dict[str, str]) -> None:
    job = cluster.submit(work(out))
    stop_in_the_middle(cluster, out, job)
    cluster.cancel(job)
    cluster.wait(job)
    assert cluster.states(job) == ["CANCELLED"], cluster.output()
    cluster.wait(cluster.submit(work(out)))
    assert_finished(cluster, out, undisturbed)


def test_a_job_that_is_requeued(cluster: Cluster, out: Path, undisturbed: dict[str, str]) -> None:
    job = cluster.submit(work(out), "--open-mode=append")
    stop_in_the_middle(cluster, out, job)
    cluster.requeue(job)
    cluster.wait(job)
    assert (cluster.states(job), cluster.facts(job)["Restarts"]) == (["COMPLETED"], "1"), cluster.output()
    assert_finished(cluster, out, undisturbed)


def test_a_time_limit_then_the_same_job_again(
    cluster: Cluster, limited: tuple[Path, str], undisturbed: dict[str, str]
) -> None:
    out, job = limited
    cluster.wait(job)
    assert cluster.states(job) == ["TIMEOUT"], cluster.output()
    cluster.wait(cluster.submit(work(out)))
    assert_finished(cluster, out, undisturbed)


def test_a_node_that_is_lost_and_comes_back_with_the_old_processes(
    cluster: Cluster, out: Path, undisturbed: dict[str, str]
) -> None:
    job = cluster.submit(work(out), "--requeue")
    old = stop_in_the_middle(cluster, out, job)
    node = cluster.facts(job)["NodeList"]
    cluster.lose(node)
    try:
        cluster.wait(job)
        facts = cluster.facts(job)
        assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), cluster.output()
        assert facts["NodeList"] != node
        assert_finished(cluster, out, undisturbed)
        assert cluster.signal(job, signal.SIGCONT) == old
        until(lambda: not cluster.signal(job, signal.SIGCONT), "the end of the old processes")
    finally:
        cluster.resume(node)
    assert digests(out) == undisturbed


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("mpi", list(MPIEXEC))
def test_ranks_of_mpiexec_share_a_build(mpi: str, out: Path, undisturbed: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    # Both at once, and the second with another number of tasks: they do some blocks twice.
    shared = subprocess.Popen([*PREP, "work", out, "--task", "2", "--tasks", "3", "--workers", "1"])
    until(lambda: read_status(out).tasks, "the first block of the task beside")  # before nothing is left for it
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
    assert digests(out) == undisturbed


def test_an_element_that_stands_still_is_taken_over_by_another_process(
    cluster: Cluster, out: Path, undisturbed: dict[str, str]
) -> None:
    array = cluster.submit(work(out, 2), "--array=0-1")
    processes = stop_in_the_middle(cluster, out, f"{array}_1", task=1)
    cluster.run(*PREP, "work", out)
    assert_finished(cluster, out, undisturbed)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    cluster.wait(array)
    assert digests(out) == undisturbed
