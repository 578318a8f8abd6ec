"""The training jobs of examples/, on an emulated cluster: CPUs and gloo, two ranks a node.

What needs GPUs (their binding, nccl) is not tried here, and PBS itself is not either.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from decodeonce.prep.build import Work, build
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import open_imagenet
from tests.cluster.slurm import Cluster
from tests.cluster.until import until
from tests.images import make_tree

# The first test on a fresh machine installs Slurm; a rank takes seconds to import torch.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAIN = EXAMPLES / "train_resnet50.py"
SIZE, EPOCHS, STEPS = 32, 60, 4  # 16 pictures a step
FLAGS = ["--model", "small", "--batch-size", "4", "--epochs", str(EPOCHS), "--print-every", "2"]
FLAGS += ["--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 66 rows: four ranks have four steps an epoch."""
    root = tmp_path_factory.mktemp("training")
    tree = make_tree(root / "imagenet", classes=6, per_class=11)
    build(open_imagenet(tree), root / "store", Recipe(height=SIZE, width=SIZE, shuffle_seed=0), Work(workers=1))
    return root / "store"


@pytest.fixture(scope="module")
def undisturbed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What four ranks of torchrun come to that read the whole store."""
    checkpoint = tmp_path_factory.mktemp("undisturbed") / "train.pt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [*torchrun, TRAIN, store, "--partition", "range", "--checkpoint", checkpoint, *FLAGS]
    subprocess.run(list(map(str, command)), check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    return read(checkpoint)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """What a user would set for a job here."""
    (tmp_path / "local").mkdir()
    return {
        "LOCAL": str(tmp_path / "local"),
        "CHECKPOINT": str(tmp_path / "train.pt"),
        "PYTHON": sys.executable,
        "TRAIN": str(TRAIN),
        "MASTER_ADDR": "127.0.0.1",
    }


def read(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    return found


def sbatch(cluster: Cluster, store: Path, settings: dict[str, str]) -> str:
    """Submit train.slurm for two nodes of two ranks without GPUs; returns the job's id."""
    exported = ",".join(["ALL", *(f"{name}={value}" for name, value in settings.items())])
    options = ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--gpus-per-node=0"]
    options += [f"--export={exported}", "--output=%j.out", str(EXAMPLES / "train.slurm")]
    return cluster.run("sbatch", "--parsable", *options, str(store), *FLAGS)


def assert_same(one: dict[str, Any], other: dict[str, Any], *, resumed: bool = False) -> None:
    """The same steps, the same feed, and the same model, to the last bit unless one was resumed.

    DDP orders what it sums anew after its first step, and the sum of four ranks' gradients is rounded as they are
    ordered. (With two ranks a resumed model is the same to the last bit; after 120 steps of four it was 1e-7 off.)
    """
    assert (one["step"], one["feed"]) == (other["step"], other["feed"])
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if resumed else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(one["model"], other["model"], **tolerance)


def test_two_nodes_train_from_their_parts(
    cluster: Cluster, store: Path, undisturbed: dict[str, Any], settings: dict[str, str], tmp_path: Path
) -> None:
    job = sbatch(cluster, store, settings | {"PROFILE": str(tmp_path / "profile")})
    cluster.wait(job, within=240)
    assert cluster.states(job) == ["COMPLETED"], cluster.output()
    log = (cluster.jobs / f"{job}.out").read_text()
    for node, rows in enumerate(("rows 0..32", "rows 33..65")):
        assert f"part-{job}-{node}: {rows} of the 66 of {store}" in log
    assert f"store: {STEPS} steps an epoch on each of 4 ranks, small on cpu" in log
    assert_same(read(Path(settings["CHECKPOINT"])), undisturbed)
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        f"rank{rank}.pt.trace.json" for rank in range(4)
    ]
    assert list(Path(settings["LOCAL"]).iterdir()) == []


def stop_in_the_middle(cluster: Cluster, job: str, checkpoint: Path) -> tuple[int, list[int]]:
    """Have a job stand still once it has a checkpoint; returns the step of that, and the numbers of the ranks."""
    until(checkpoint.exists, lambda: f"a checkpoint\n{cluster.queue(job)}\n{cluster.output()}", within=240)
    processes = cluster.signal(job, signal.SIGSTOP)
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in processes}
    ranks = [pid for pid, command in commands.items() if command[:2] == [sys.executable.encode(), bytes(TRAIN)]]
    step = read(checkpoint)["step"]
    assert (len(ranks), 0 < step < EPOCHS * STEPS) == (4, True), (commands, step)
    return step, ranks


@pytest.mark.long
def test_a_job_that_is_requeued_goes_on(
    cluster: Cluster, store: Path, undisturbed: dict[str, Any], settings: dict[str, str]
) -> None:
    checkpoint = Path(settings["CHECKPOINT"])
    job = sbatch(cluster, store, settings)
    step, _ = stop_in_the_middle(cluster, job, checkpoint)
    cluster.requeue(job)
    cluster.wait(job, within=240)
    assert (cluster.states(job), cluster.facts(job)["Restarts"]) == (["COMPLETED"], "1"), cluster.output()
    log = (cluster.jobs / f"{job}.out").read_text()
    assert f"resumed after step {step} in epoch {step // STEPS}" in log
    assert_same(read(checkpoint), undisturbed, resumed=True)


@pytest.mark.long
def test_a_rank_that_is_killed_ends_the_job_and_the_same_again_goes_on(
    cluster: Cluster, store: Path, undisturbed: dict[str, Any], settings: dict[str, str]
) -> None:
    checkpoint = Path(settings["CHECKPOINT"])
    job = sbatch(cluster, store, settings)
    _, ranks = stop_in_the_middle(cluster, job, checkpoint)
    os.kill(ranks[-1], signal.SIGKILL)
    cluster.signal(job, signal.SIGCONT)
    cluster.wait(job, within=240)
    assert cluster.states(job) == ["FAILED"], cluster.output()
    assert list(Path(settings["LOCAL"]).iterdir()) == []
    again = sbatch(cluster, store, settings)
    cluster.wait(again, within=240)
    assert cluster.states(again) == ["COMPLETED"], cluster.output()
    assert "resumed after step" in (cluster.jobs / f"{again}.out").read_text()
    assert_same(read(checkpoint), undisturbed, resumed=True)


def test_the_script_for_pbs_through_the_qsub_of_slurm_wlm_torque(
    cluster: Cluster, store: Path, undisturbed: dict[str, Any], settings: dict[str, str], tmp_path: Path
) -> None:
    """One node with MPICH: #PBS lines, variables, staging and ranks; that wrapper makes no PBS_NODEFILE."""
    settings |= {"STORE": str(store), "NODES": "1", "MPIEXEC": "mpiexec.mpich", "BIND": ""}
    settings |= {"GPUS": "4", "FLAGS": shlex.join(FLAGS), "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log"
    # -V, because with -v this qsub takes no blanks.
    qsub = [
        "qsub",
        "-V",
        "-q",
        "main",
        "-l",
        "select=1:ncpus=4",
        "-o",
        str(log),
        "-e",
        str(log),
        str(EXAMPLES / "train.pbs"),
    ]
    job = cluster.run("env", *(f"{name}={value}" for name, value in settings.items()), *qsub)
    cluster.wait(job, within=240)
    printed = log.read_text()
    assert cluster.states(job) == ["COMPLETED"], printed
    assert cluster.facts(job)["JobName"] == "train"
    assert f"part-{job}: rows 0..65 of the 66 of {store}" in printed
    assert f"store: {STEPS} steps an epoch on each of 4 ranks, small on cpu" in printed
    assert_same(read(Path(settings["CHECKPOINT"])), undisturbed)
    assert list(Path(settings["LOCAL"]).iterdir()) == []
