"""`prep submit` on a real Slurm, and with the qsub of slurm-wlm-torque, which is not a PBS."""

import json
import os
import shlex
import signal
from pathlib import Path

import pytest

from decodeonce.formatting import quoted
from decodeonce.prep.building.status import read_status
from tests.cluster.builds import PREP, digests, stop_in_the_middle
from tests.cluster.slurm import Cluster
from tests.cluster.until import until

# The first test on a fresh machine installs Slurm.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


# A store, the ids of its jobs, and the process ids of the element of the first array.
Limited = tuple[Path, list[str], list[int]]


def submit_chain(cluster: Cluster, scheduler: str, tree: Path, out: Path, *flags: str) -> list[str]:
    """Submit the chain of a build with `prep submit`; return the job ids in order."""
    words = [scheduler, "build", "imagenet", str(tree), str(out), "--workers", "1", "--cpus", "1", *flags]
    output = cluster.run(*PREP, "submit", *words, "--submit").partition("\nsubmitted: ")[2]
    ids, _, follow = output.partition("; ")
    assert follow == f"to see its progress, run: prep status {quoted(str(out))}"
    return ids.split()


def jobs_of(out: Path) -> Path:
    """Return the folder of the scripts and logs of the jobs."""
    return out.with_name(f"{out.name}.jobs")


def logs(out: Path, pattern: str) -> str:
    """Return the logs of the jobs whose names match a pattern."""
    paths = sorted(jobs_of(out).glob(pattern))
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')}" for path in paths)


@pytest.fixture(scope="module", autouse=True)
def limited(cluster: Cluster, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Limited:
    """A chain whose first array is near its time limit in the middle of the build.

    Slurm checks limits every 30 s. The fixture is used automatically, so that other tests run meanwhile.
    """
    out = tmp_path_factory.mktemp("limited") / "store"
    jobs = submit_chain(cluster, "slurm", tree, out, "--tasks", "1", "--rounds", "3", "--time", "0:10:00")
    cluster.wait(jobs[0])
    processes = stop_in_the_middle(cluster, out, f"{jobs[1]}_0")
    assert read_status(out).blocks_done > 0
    # The limit is now nearer than 120 s, the requested time of the signal before the limit.
    cluster.run("scontrol", "update", f"JobId={jobs[1]}_0", "TimeLimit=2")
    return out, jobs, processes


def test_chain_in_an_unusual_folder(
    cluster: Cluster, tree: Path, uninterrupted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / 'it\'s "place" $HOME' / "a b\nc.store"
    then, seen = tmp_path / "then.sh", tmp_path / "seen"
    then.write_text(f'#!/bin/bash\nls "$STORE/store.json" > {shlex.quote(str(seen))}\n')
    out.parent.mkdir()
    jobs = submit_chain(cluster, "slurm", tree, out, "--tasks", "4", "--rounds", "2", "--then", str(then))
    assert len(jobs) == 5
    cluster.wait(*jobs)
    plan, first, second, finish, last = jobs
    for job in (plan, first, finish, last):
        assert set(cluster.states(job)) == {"COMPLETED"}, logs(out, "*.log")
    assert set(cluster.states(second)) == {"CANCELLED"}, "the first round left nothing"
    assert digests(out) == uninterrupted
    assert seen.read_text() == f"{out}/store.json\n"
    for task in range(4):
        assert f"task {task} of 4 (SLURM_ARRAY_TASK_ID={task})" in logs(out, f"array-{first}_{task}.log")
    assert "240 rows in " in logs(out, f"finish-{finish}.log")
    ends = [json.loads(text.splitlines()[-1]) for text in map(Path.read_text, (jobs_of(out) / "logs").iterdir())]
    assert [end["event"] for end in ends] == ["finished"] * (1 + 4 + 1)


def test_elements_are_killed_cancelled_and_requeued_and_the_chain_is_resubmitted(
    cluster: Cluster, tree: Path, uninterrupted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    jobs = submit_chain(cluster, "slurm", tree, out, "--tasks", "3", "--max-running", "1")
    plan, array, finish = jobs
    killed, cancelled, requeued = (f"{array}_{task}" for task in range(3))
    cluster.wait(plan)
    stop_in_the_middle(cluster, out, killed, task=0)
    cluster.signal(killed, signal.SIGKILL)
    stop_in_the_middle(cluster, out, cancelled, task=1)
    cluster.cancel(cancelled)
    stop_in_the_middle(cluster, out, requeued, task=2)
    cluster.requeue(requeued)
    cluster.wait(*jobs, within=120)
    states = [cluster.states(job) for job in (killed, cancelled, requeued, finish)]
    assert states == [["FAILED"], ["CANCELLED"], ["COMPLETED"], ["FAILED"]], logs(out, "*.log")
    assert cluster.facts(killed)["ExitCode"] == "0:9"
    assert cluster.facts(requeued)["Restarts"] == "1"
    assert [task.task for task in read_status(out).tasks if task.blocks_done == task.blocks] == [2]
    output = logs(out, f"finish-{finish}.log")
    again = f"bash {out}.jobs/submit.sh"
    assert " of 48 blocks are not done (first " in output
    assert output.endswith(f"; run: {again}\n")
    jobs = cluster.run(*again.split()).split()
    cluster.wait(*jobs, within=120)
    assert cluster.states(jobs[-1]) == ["COMPLETED"], logs(out, "*.log")
    assert digests(out) == uninterrupted


def test_elements_of_several_nodes(
    cluster: Cluster, tree: Path, uninterrupted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "store"
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():  # stale variables of the shell that submits
        monkeypatch.setitem(cluster.environ, name, value)
    jobs = submit_chain(cluster, "slurm", tree, out, "--tasks", "2", "--nodes", "2", "--time", "0:05:00")
    cluster.wait(*jobs)
    assert [set(cluster.states(job)) for job in jobs] == [{"COMPLETED"}] * 3, logs(out, "*.log")
    for task in range(4):
        message = f"task {task} of 4 (SLURM_ARRAY_TASK_ID={task // 2}, rank {task % 2} of 2 (Slurm))"
        assert message in logs(out, f"array-{jobs[1]}_{task // 2}.log")
    assert digests(out) == uninterrupted


def test_task_stops_before_its_time_limit_and_the_next_round_resumes(
    cluster: Cluster, limited: Limited, uninterrupted: dict[str, str]
) -> None:
    out, jobs, processes = limited
    statuses = [Path(f"/proc/{pid}/status") for pid in processes]
    continued = "a process continued by the signal of Slurm"
    until(lambda: not all("State:\tT" in path.read_text() for path in statuses), continued, within=50)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    cluster.wait(*jobs, within=120)
    states = [cluster.states(job) for job in jobs]
    assert states == [["COMPLETED"], ["FAILED"], ["COMPLETED"], ["CANCELLED"], ["COMPLETED"]], logs(out, "*.log")
    assert cluster.facts(f"{jobs[1]}_0")["ExitCode"] == "75:0"
    assert "prep: stopped: SIGUSR1: stopped after the current blocks, " in logs(out, f"array-{jobs[1]}_0.log")
    assert digests(out) == uninterrupted


def test_task_that_ends_with_its_node_gets_the_next_round(
    cluster: Cluster, tree: Path, uninterrupted: dict[str, str], tmp_path: Path
) -> None:
    out, site = tmp_path / "store", tmp_path / "site.toml"
    text = 'name = "Site"\nscheduler = "slurm"\nsource = "here"\nlaunch = "srun"\narray_directives = ["--no-requeue"]\n'
    site.write_text(text)
    jobs = submit_chain(cluster, "slurm", tree, out, "--tasks", "1", "--rounds", "2", "--site", str(site))
    cluster.wait(jobs[0])
    element = f"{jobs[1]}_0"
    stop_in_the_middle(cluster, out, element)
    node = cluster.facts(element)["NodeList"]
    cluster.disconnect(node)
    try:
        cluster.wait(*jobs)
        states = [cluster.states(job) for job in jobs]
        assert states == [["COMPLETED"], ["NODE_FAIL"], ["COMPLETED"], ["COMPLETED"]], logs(out, "*.log")
        assert digests(out) == uninterrupted
    finally:
        cluster.signal(element, signal.SIGKILL)
        cluster.resume(node)


def test_queued_chain_is_shown_refused_a_second_time_and_cancelled(
    cluster: Cluster, tree: Path, uninterrupted: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    script = f"bash {out}.jobs/submit.sh"
    jobs = submit_chain(cluster, "slurm", tree, out, "--tasks", "2", "--rounds", "2", "--max-running", "1")
    plan, array, second, finish = jobs
    cluster.wait(plan)
    stop_in_the_middle(cluster, out, f"{array}_0")
    pending = "1 of 2 pending (JobArrayTaskLimit), 1 of 2 running"
    shown = f"plan {plan}: finished; array {array}: {pending}; round 2 {second}: 2 of 2 waiting"
    assert f"{shown}; finish {finish}: waiting" in cluster.run(*PREP, "status", out)
    with pytest.raises(AssertionError, match=f"array {array} is still in the queue; to cancel .* prep cancel {out}"):
        cluster.run(*script.split())
    cluster.cancel(finish)
    cluster.wait(finish)
    assert f"{shown}; finish {finish}: ended without a log" in cluster.run(*PREP, "status", out)
    cancelled = [f"round 2 {second}: cancelled", f"array {array}: cancelled"]
    assert cluster.run(*PREP, "cancel", out).splitlines() == cancelled
    cluster.wait(*jobs)
    assert cluster.run(*PREP, "cancel", out) == f"{out}: all jobs have ended"
    jobs = cluster.run(*script.split()).split()
    cluster.wait(*jobs)
    assert digests(out) == uninterrupted, logs(out, "*.log")


def test_failed_plan_cancels_the_chain(cluster: Cluster, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    out.mkdir()
    (out / "mine").touch()
    jobs = submit_chain(cluster, "slurm", tree, out, "--tasks", "2", "--rounds", "2")
    cluster.wait(*jobs)
    assert cluster.states(jobs[0]) == ["FAILED"]
    assert [set(cluster.states(job)) for job in jobs[1:]] == [{"CANCELLED"}] * 3
    assert "it contains mine; choose another OUT" in logs(out, "plan-*.log")
    shown = cluster.run(*PREP, "status", out)
    assert f"plan {jobs[0]}: failed: prep: error: {out}: not an unfinished build: it contains mine;" in shown
    assert f"array {jobs[1]}: ended without a log; " in shown
    assert "it contains mine; choose another OUT" in cluster.run(*PREP, "logs", out)


def test_chain_is_submitted_in_a_step_of_several_tasks(
    cluster: Cluster, tree: Path, uninterrupted: dict[str, str], tmp_path: Path
) -> None:
    """The jobs inherit the variables of the step, but each element is one task."""
    out = tmp_path / "store"
    words = ["build", "imagenet", str(tree), str(out), "--tasks", "4", "--cpus", "1"]
    cluster.run(*PREP, "submit", "slurm", *words)
    first = ["srun", "--ntasks=2", "sh", "-c", '[ "$SLURM_PROCID" = 1 ] || exec bash "$0"']
    jobs = cluster.run(*first, f"{out}.jobs/submit.sh").split()
    cluster.wait(*jobs)
    assert [set(cluster.states(job)) for job in jobs] == [{"COMPLETED"}] * 3, logs(out, "*.log")
    assert digests(out) == uninterrupted
