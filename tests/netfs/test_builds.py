"""Builds on a network file system that two nodes mount."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.builds import PREP, digests
from tests.cluster.until import until
from tests.images import jpeg
from tests.netfs.gluster import Gluster

pytestmark = pytest.mark.long

PAIRS = 20
# A row has 1.1 MB and is a block of its own; a shard has two rows.
FLAGS = ["--size", "384x1024", "--shard-size", str(2 * 384 * 1024 * 3), "--max-bad", "2", "--workers", "1"]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images in 3 classes, and 2 rejects."""
    root = tmp_path_factory.mktemp("images")
    for number in range(24):
        path = root / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(200, 150, seed=number))
    for number in range(2):
        (root / "class0" / f"bad{number}.jpg").write_bytes(b"not an image")
    return root


@pytest.fixture(scope="session")
def uninterrupted(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The hashes of the files of a build by one process on a local disk, by container."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for container in ("npy", "hdf5"):
        subprocess.run(build_words(tree, folder / container, container), check=True)
    return {container: digests(folder / container) for container in ("npy", "hdf5")}


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def build_words(tree: Path, out: Path, container: str = "npy") -> list[str]:
    """Return the command of a build."""
    return [*PREP, "build", "folder", str(tree), str(out), "--format", container, *FLAGS]


@pytest.mark.parametrize("pair", range(PAIRS))
def test_equal_builds_from_two_nodes_give_one_store(
    nodes: list[Path], tree: Path, uninterrupted: dict[str, dict[str, str]], pair: int
) -> None:
    container = ("npy", "hdf5")[pair % 2]
    stores = [
        node / f"store{pair}" for node in nodes
    ]  # new names, because a node caches those of removed files for a second
    words = [build_words(tree, store, container) for store in stores]
    started = [start(command) for command in words]
    ended = [(process.communicate()[0], process.returncode) for process in started]
    assert [code for _, code in ended] == [0, 0], "\n".join(output for output, _ in ended)
    for store in stores:
        assert digests(store) == uninterrupted[container]


def test_two_nodes_build_while_a_server_is_stopped_and_started(
    gluster: Gluster, nodes: list[Path], tree: Path, uninterrupted: dict[str, dict[str, str]]
) -> None:
    out = [node / "store" for node in nodes]
    words = [build_words(tree, store) for store in out]
    started = [start(command) for command in words]
    journals = out[0] / ".build" / "journals"
    until(lambda: any(path.stat().st_size for path in journals.glob("*.log")), "no block is done")
    gluster.bricks[0].kill()
    until(lambda: any(process.poll() is not None for process in started), "both builds hang")
    gluster.start()
    ended = [(process.communicate()[0], process.returncode) for process in started]
    for output, code in ended:
        assert code in (0, 75) or "file server may be" in output, output
    for command in words:  # exit code 75 means: run the same command again
        again = start(command)
        output = again.communicate()[0]
        assert again.returncode == 0, output
    for store in out:
        assert digests(store) == uninterrupted["npy"]


def test_listing_that_a_lost_server_cut_short_is_refused(gluster: Gluster, nodes: list[Path], tree: Path) -> None:
    shutil.copytree(tree, nodes[0] / "images")
    gluster.bricks[0].kill()
    words = [*build_words(nodes[0] / "images", nodes[0] / "store"), "--expect", "26"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 75)
    assert "--expect is 26" in done.stderr or "file server may be" in done.stderr
    assert not (nodes[0] / "store").exists()
