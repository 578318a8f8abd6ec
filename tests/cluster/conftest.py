"""A Slurm cluster that all tests of this folder share. It is started for the first test that uses it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.builds import PREP, digests, make_slow_tree
from tests.cluster.slurm import Cluster
from tests.packages import need

# Each Debian package whose programs these tests run, and a program by which it is recognized.
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "munge": "munged",
    "slurm-wlm-torque": "qsub",
    "openmpi-bin": "mpiexec.openmpi",
    "mpich": "mpiexec.mpich",
}


@pytest.fixture(scope="session")
def programs() -> None:
    """Skip the tests that need Slurm and two MPIs if these are not installed; fail them if CI is set."""
    need(PACKAGES)


@pytest.fixture(scope="session")
def cluster(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("slurm"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _nodes_are_up(request: pytest.FixtureRequest) -> None:
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").restart_crashed()


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageNet tree whose build takes a few seconds."""
    return make_slow_tree(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture(scope="session")
def uninterrupted(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("uninterrupted") / "store"
    subprocess.run([*PREP, "build", "imagenet", str(tree), str(out), "--workers", "1"], check=True)
    return digests(out)
