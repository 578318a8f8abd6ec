"""A Slurm that all tests of this folder share, started when the first asks for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.builds import PREP, digests, make_slow_tree
from tests.cluster.programs import CLUSTER
from tests.cluster.slurm import Cluster
from tests.packages import need


@pytest.fixture(scope="session")
def programs() -> None:
    """Slurm and two MPIs are installed, else the tests that need them are skipped; with CI set they fail."""
    need(CLUSTER)


@pytest.fixture(scope="session")
def cluster(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Slurm of three nodes."""
    running = Cluster(tmp_path_factory.mktemp("slurm"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageNet tree whose build takes a few seconds."""
    return make_slow_tree(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture(scope="session")
def undisturbed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the files of the store are that one process builds of it in peace."""
    out = tmp_path_factory.mktemp("undisturbed") / "store"
    subprocess.run([*PREP, "build", "imagenet", str(tree), str(out), "--workers", "1"], check=True)
    return digests(out)
