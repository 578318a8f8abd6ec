"""The real scripts of a chain under the small PBS of tests/pbs.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decodeonce.prep.jobs import Chain, read_site, write_scripts
from tests import pbs
from tests.pictures import make_tree, tree_bytes

PREP = [sys.executable, "-m", "decodeonce.cli"]


def submitted(folder: Path, script: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a chain's submit.sh."""
    own = {**pbs.install(folder), **environ}
    return subprocess.run(["bash", script], env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def small_chain(folder: Path) -> Path:
    """Write the scripts of a chain whose jobs add their names to a file; returns the path of submit.sh."""
    then = folder / "then.pbs"
    then.write_text('#!/bin/bash\n#PBS -N then\ncd "$PBS_O_WORKDIR" && echo "then $STORE" >> ran\n')
    commands = [["sh", "-c", f"echo {name} $PBS_ARRAY_INDEX >> ran"] for name in ("plan", "array", "finish")]
    chain = Chain(tasks=2, cpus=1, rounds=2, seconds=60, then=Path("then.pbs"))
    return write_scripts(folder / "OUT", read_site("generic-pbs"), chain, commands, folder)


def test_no_job_of_a_chain_is_dropped_when_qsub_is_slower_than_the_plan(tmp_path: Path) -> None:
    done = submitted(tmp_path / "pbs", small_chain(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1.pbs 2[].pbs 3[].pbs 4.pbs 5.pbs\n"
    ran = ["plan", "array 0", "array 1", "array 0", "array 1", "finish", f"then {tmp_path}/OUT"]
    assert [line.strip() for line in (tmp_path / "ran").read_text().splitlines()] == ran


@pytest.mark.parametrize("name", ["prep-plan", "then"])
def test_a_job_that_pbs_drops_is_named_and_the_chain_is_cancelled(tmp_path: Path, name: str) -> None:
    done = submitted(tmp_path / "pbs", small_chain(tmp_path), PBS_DROPS=name)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert ".pbs was accepted but is not in the queue; the other jobs of the chain are cancelled" in done.stderr
    assert pbs.queued(tmp_path / "pbs") == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.long
def test_a_store_is_built_when_qsub_is_slower_than_the_plan(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", classes=2)
    environ = {**os.environ, **pbs.install(tmp_path / "pbs")}
    words = ["build", "imagenet", str(tree), "OUT", "--tasks", "2", "--cpus", "1", "--submit"]
    subprocess.run([*PREP, "submit", "pbs", *words], cwd=tmp_path, env=environ, check=True)
    subprocess.run([*PREP, "build", "imagenet", str(tree), "alone"], cwd=tmp_path, check=True)
    assert tree_bytes(tmp_path / "OUT") == tree_bytes(tmp_path / "alone")
