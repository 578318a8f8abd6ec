"""The scripts of a chain and processes of pbsdsh run under the emulated PBS of tests/pbs.py."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from decodeonce.prep.jobs import Chain, read_site, write_scripts
from tests import pbs
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


@pytest.mark.parametrize("name", ["prep-plan", "then"])
def test_dropped_job_is_named_and_the_chain_cancelled(tmp_path: Path, name: str) -> None:
    done = submit(tmp_path / "pbs", small_chain(tmp_path), PBS_DROPS=name)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert ".pbs was accepted but is not in the queue; the other jobs of the chain are cancelled" in done.stderr
    assert pbs.queued(tmp_path / "pbs") == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
def test_store_is_built_if_qsub_is_slower_than_the_plan(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", classes=2)
    environ = {**os.environ, **pbs.install(tmp_path / "pbs")}
    words = ["build", "imagenet", str(tree), "OUT", "--tasks", "2", "--cpus", "1", "--submit"]
    subprocess.run([*PREP, "submit", "pbs", *words], cwd=tmp_path, env=environ, check=True)
    subprocess.run([*PREP, "build", "imagenet", str(tree), "alone"], cwd=tmp_path, check=True)
    assert tree_bytes(tmp_path / "OUT") == tree_bytes(tmp_path / "alone")


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
