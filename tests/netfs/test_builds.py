"""Builds on a network file system that two nodes mount."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.builds import PREP, digests
from tests.netfs.gluster import Gluster
from tests.pictures import jpeg

pytestmark = pytest.mark.long

PAIRS = 20
# Rows of 1.1 MB are blocks of their own; two of them go into a shard.
FLAGS = ["--size", "384x1024", "--shard-size", str(2 * 384 * 1024 * 3), "--max-bad", "2", "--workers", "1"]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures in 3 classes, and 2 rejects."""
    root = tmp_path_factory.mktemp("pictures")
    for number in range(24):
        path = root / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(200, 150, seed=number))
    for number in range(2):
        (root / "class0" / f"bad{number}.jpg").write_bytes(b"no picture")
    return root


@pytest.fixture(scope="session")
def undisturbed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What one process builds on a local disk, by container."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for container in ("npy", "hdf5"):
        subprocess.run(build_words(tree, folder / container, container), check=True)
    return {container: digests(folder / container) for container in ("npy", "hdf5")}


def build_words(tree: Path, out: Path, container: str = "npy") -> list[str]:
    """The build that these tests are about."""
    return [*PREP, "build", "folder", str(tree), str(out), "--format", container, *FLAGS]


@pytest.mark.parametrize("pair", range(PAIRS))
def test_equal_builds_from_two_nodes_give_one_store(
    nodes: list[Path], tree: Path, undisturbed: dict[str, dict[str, str]], pair: int
) -> None:
    container = ("npy", "hdf5")[pair % 2]
    words = [build_words(tree, node / "store", container) for node in nodes]
    started = [subprocess.Popen(w, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for w in words]
    ended = [(process.communicate()[0], process.returncode) for process in started]
    assert [code for _, code in ended] == [0, 0], ended
    for node in nodes:
        assert digests(node / "store") == undisturbed[container]
