"""Builds on a network file system that two nodes mount."""

import shutil
from pathlib import Path

import pytest

from tests.cluster.builds import digests
from tests.cluster.until import until
from tests.netfs.commands import build, ended, has_block, run, start
from tests.netfs.gluster import Gluster

pytestmark = pytest.mark.release

Digests = dict[str, dict[str, str]]  # by container
PAIRS = 10


@pytest.mark.parametrize("pair", range(PAIRS))
def test_equal_builds_from_two_nodes_give_one_store(
    nodes: list[Path], tree: Path, uninterrupted: Digests, pair: int
) -> None:
    container = ("npy", "hdf5")[pair % 2]
    # New names, because a node caches those of removed files for a second.
    stores = [node / f"store{pair}" for node in nodes]
    found = run(*(build(tree, store, container) for store in stores))
    # The guarantee: a command builds or finds the store, or asks to be run again. A node may see the files of another
    # one late, and empty.
    assert all(code in (0, 75) and ("again" in output or not code) for code, output in found), found
    for store in stores:
        ((code, output),) = run(build(tree, store, container))
        assert code == 0, output
        assert digests(store) == uninterrupted[container]


def test_two_nodes_build_while_a_server_is_stopped_and_started(
    volume: Gluster, nodes: list[Path], tree: Path, uninterrupted: Digests
) -> None:
    stores = [node / "store" for node in nodes]
    started = [start(build(tree, store)) for store in stores]
    until(lambda: has_block(stores[0]), "no block is done")
    volume.bricks[0].kill()
    until(lambda: any(process.poll() is not None for process in started), "both builds hang")
    volume.start()
    for code, output in ended(*started):
        assert code in (0, 75) or "file server may be" in output, output
    for store in stores:  # exit code 75 means: run the same command again
        ((code, output),) = run(build(tree, store))
        assert code == 0, output
    for store in stores:
        assert digests(store) == uninterrupted["npy"]


def test_listing_that_a_lost_server_cut_short_is_refused(volume: Gluster, nodes: list[Path], tree: Path) -> None:
    shutil.copytree(tree, nodes[0] / "images")
    volume.bricks[0].kill()
    ((code, output),) = run([*build(nodes[0] / "images", nodes[0] / "store"), "--expect", "26"])
    assert code in (1, 75)
    assert "--expect is 26" in output or "file server may be" in output
    assert not (nodes[0] / "store").exists()
