"""The scripts of a chain and processes of pbsdsh run under the emulated PBS of tests/pbs.py."""

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from decodeonce.prep.jobs.base import Chain
from decodeonce.prep.jobs.chain import write_scripts
from decodeonce.prep.jobs.site import read_site
from tests import pbs
from tests.cluster.until import until
from tests.command import prep, write_program
from tests.images import make_tree, tree_bytes

PREP = [sys.executable, "-m", "decodeonce.cli"]


def submit(folder: Path, script: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the submit.sh of a chain."""
    env = {**pbs.install(folder), **environ}
    return subprocess.run(["bash", script], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def small_chain(folder: Path) -> Path:
    """Write the scripts of a chain whose jobs append their names to a file; return the path of submit.sh."""
    then = folder / "then.pbs"
    then.write_text('#!/bin/bash\n#PBS -N then\ncd "$PBS_O_WORKDIR" && echo "then $STORE" >> ran\n')
    commands = [["sh", "-c", f"echo {name} $PBS_ARRAY_INDEX >> ran"] for name in ("plan", "array", "finish")]
    chain = Chain(tasks=2, cpus=1, rounds=2, seconds=60, then=Path("then.pbs"))
    return write_scripts(folder / "OUT", read_site("generic-pbs"), chain, commands, folder)


def test_no_job_is_dropped_if_qsub_is_slower_than_the_plan(tmp_path: Path) -> None:
    done = submit(tmp_path / "pbs", small_chain(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1.pbs 2[].pbs 3[].pbs 4.pbs 5.pbs\n"
    ran = ["plan", "array 0", "array 1", "array 0", "array 1", "finish", f"then {tmp_path}/OUT"]
    assert [line.strip() for line in (tmp_path / "ran").read_text().splitlines()] == ran


@pytest.mark.parametrize("name", [pytest.param("OUT-plan", marks=pytest.mark.long), "then"])
def test_dropped_job_is_named_and_the_chain_cancelled(tmp_path: Path, name: str) -> None:
    done = submit(tmp_path / "pbs", small_chain(tmp_path), PBS_DROPS=name)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert ".pbs was accepted but is not in the queue; the other jobs of the chain are cancelled" in done.stderr
    assert pbs.queued(tmp_path / "pbs") == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_store_is_built_as_without_pbs(tmp_path: Path, nodes: str) -> None:
    tree = make_tree(tmp_path / "src", classes=2)
    environ = {**os.environ, **pbs.install(tmp_path / "pbs")}
    words = ["build", "imagenet", str(tree), "OUT", "--tasks", "2", "--nodes", nodes, "--cpus", "1", "--submit"]
    subprocess.run([*PREP, "submit", "pbs", *words], cwd=tmp_path, env=environ, check=True, umask=0o027)
    subprocess.run([*PREP, "build", "imagenet", str(tree), "alone"], cwd=tmp_path, check=True, umask=0o027)
    assert tree_bytes(tmp_path / "OUT") == tree_bytes(tmp_path / "alone")
    assert modes(tmp_path / "OUT") == modes(tmp_path / "alone")
    output = "".join(path.read_text() for path in (tmp_path / "OUT.jobs").glob("OUT-array.o*"))
    for task in range(2 * int(nodes)):
        assert f"task {task} of {2 * int(nodes)} (PBS_ARRAY_INDEX={task // int(nodes)}" in output


def modes(folder: Path) -> dict[str, int]:
    """Return the permissions of each file."""
    return {path.name: path.stat().st_mode for path in folder.iterdir()}


@pytest.mark.long
def test_error_of_a_task_is_in_the_log_of_the_job(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", classes=2)
    (tree / "train/n00000000/n00000000_0.JPEG").write_bytes(b"broken")
    environ = {**os.environ, **pbs.install(tmp_path / "pbs")}
    words = ["build", "imagenet", str(tree), "OUT", "--tasks", "2", "--nodes", "2", "--cpus", "1", "--on-bad", "fail"]
    subprocess.run([*PREP, "submit", "pbs", *words, "--submit"], cwd=tmp_path, env=environ, check=True)
    output = "".join(path.read_text() for path in (tmp_path / "OUT.jobs").glob("OUT-array.o*"))
    assert "n00000000_0.JPEG: " in output


@pytest.mark.parametrize("how", [pytest.param("Ctrl-C", marks=pytest.mark.long), "SIGTERM", "Ctrl-C of submit.sh"])
def test_interrupted_submission_leaves_no_jobs(tmp_path: Path, how: str) -> None:
    tree, gate = make_tree(tmp_path / "src", classes=2), tmp_path / "gate"
    os.mkfifo(gate)
    environ = {**os.environ, **pbs.install(tmp_path / "pbs"), "PBS_GATE": str(gate)}
    words = ["build", "imagenet", str(tree), "OUT", "--tasks", "2", "--rounds", "9", "--cpus", "1"]
    command = [*PREP, "submit", "pbs", *words]
    if how == "Ctrl-C of submit.sh":
        subprocess.run(command, cwd=tmp_path, check=True)
        # In the background of a shell, the tests ignore SIGINT, and bash cannot trap signals that were ignored before.
        command = ["env", "--default-signal=INT", "bash", "OUT.jobs/submit.sh"]
    else:
        command += ["--submit"]
    submitting = subprocess.Popen(
        command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for _ in range(2):  # two jobs
        gate.write_text("")
    with gate.open("w"):  # the third qsub runs
        os.killpg(submitting.pid, signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)

    def has_ended() -> bool:
        with suppress(OSError):  # no other qsub waits
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        return submitting.poll() is not None

    until(has_ended, "the end of prep submit")
    assert "stopped; the jobs so far are cancelled" in submitting.communicate()[1]
    assert submitting.returncode == (130 if how == "Ctrl-C of submit.sh" else 75)
    assert pbs.queued(tmp_path / "pbs") == []
    assert not (tmp_path / "OUT.jobs/submitted").exists()


def test_queued_chain_is_shown_and_not_submitted_again_until_it_is_cancelled(tmp_path: Path) -> None:
    script = small_chain(tmp_path)
    script.write_text(script.read_text().replace('qrls "$plan"', ""))
    assert submit(tmp_path / "pbs", script).returncode == 0
    path = f"{tmp_path}/pbs/bin:{os.environ['PATH']}"
    run = partial(prep, cwd=tmp_path, PATH=path)
    waiting = (
        "array 2[].pbs: 2 of 2 waiting; round 2 3[].pbs: 2 of 2 waiting; finish 4.pbs: waiting; then 5.pbs: waiting"
    )
    assert f"plan 1.pbs: waiting; {waiting}\n" in run("status", "OUT").stdout
    again = subprocess.run(["bash", script], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    advice = f"plan 1.pbs is still in the queue; to cancel this chain, run: prep cancel {tmp_path}/OUT\n"
    assert (again.returncode, again.stderr) == (1, advice)
    assert run("cancel", "OUT").stdout.splitlines() == [
        f"{job}: cancelled" for job in ("then 5.pbs", "finish 4.pbs", "round 2 3[].pbs", "array 2[].pbs", "plan 1.pbs")
    ]
    assert pbs.queued(tmp_path / "pbs") == []
    assert run("cancel", "OUT").stdout == "OUT: all jobs have ended\n"
    assert "plan 1.pbs: ended without a log; array 2[].pbs: " in (ended := run("status", "OUT").stdout)
    assert ended.startswith("state  ended\n")
    assert "next" in ended
    assert not (tmp_path / "ran").exists()


def test_server_that_does_not_answer_is_not_a_sign_that_the_jobs_ended(tmp_path: Path) -> None:
    (tmp_path / "OUT.jobs").mkdir()
    (tmp_path / "OUT.jobs/submitted").write_text("plan\t1.pbs\tpbs\t\n")
    for name in ("qstat", "qdel"):
        write_program(tmp_path, name, 'echo "cannot connect to server" >&2\nexit 111')
    run = partial(prep, cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "plan 1.pbs: unknown\n" in run("status", "OUT").stdout
    done = run("cancel", "OUT")
    assert (done.returncode, done.stdout) == (1, "")
    assert "plan 1.pbs: not cancelled: cannot connect to server" in done.stderr
    done = run("cancel", "another")
    assert (done.returncode, "this build was not submitted with `prep submit`" in done.stderr) == (1, True)


def run_job(folder: Path, select: str, command: str) -> str:
    """Run a job whose script is one command in `folder`; return its output."""
    environ = pbs.install(folder / "pbs")
    script = folder / "job.pbs"
    script.write_text(f"#!/bin/bash\n#PBS -N job\n#PBS -l select={select}\n{command}\necho returned $?\n")
    for program in (["qsub", "-h", str(script)], ["qrls", "1.pbs"]):
        subprocess.run(program, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
    return (folder / "job.o1").read_text()


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A planned store."""
    out = tmp_path / "OUT"
    tree = make_tree(tmp_path / "src", classes=2)
    subprocess.run([*PREP, "plan", "imagenet", tree, out], check=True)
    return out


@pytest.mark.long
def test_pbsdsh_without_task_numbers_is_refused_with_the_command_to_run(planned: Path) -> None:
    work = shlex.join([*PREP, "work", str(planned), "--tasks", "4", "--workers", "1"])
    printed = run_job(planned.parent, "2:ncpus=2:mpiprocs=2", f"pbsdsh -- {work}")
    assert printed.count("--task $PBS_NODENUM --tasks NODES") == 4
    assert not list((planned / ".build/journals").iterdir())


@pytest.mark.long
def test_pbsdsh_with_node_numbers_does_all_blocks(planned: Path, tmp_path: Path) -> None:
    work = f"{shlex.join(PREP)} work OUT --task $PBS_NODENUM --tasks 2 --workers 1"
    command = f"pbsdsh -- bash -c 'cd $PBS_O_WORKDIR && exec {work}'"
    printed = run_job(tmp_path, "2:ncpus=1:mpiprocs=1", command)
    assert "task 0 of 2 is done" in printed
    assert "task 1 of 2 is done" in printed
    subprocess.run([*PREP, "finish", planned], check=True)
