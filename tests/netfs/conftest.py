"""A GlusterFS volume and two sshfs mounts, each started for the first test that uses it, and images to build from."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.builds import digests
from tests.images import jpeg
from tests.netfs import commands, gluster, sshfs
from tests.packages import give_up, need


@pytest.fixture(scope="session")
def fuse() -> None:
    """Skip these tests if FUSE file systems cannot be mounted; fail them if CI is set."""
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
        give_up("mounting a network file system requires root and /dev/fuse")


@pytest.fixture(scope="session")
def running(fuse: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[gluster.Gluster]:
    """A volume of two bricks, mounted on two nodes."""
    need(gluster.PACKAGES)
    volume = gluster.Gluster(tmp_path_factory.mktemp("gluster"))
    try:
        volume.start()
        yield volume
    finally:
        volume.stop()


@pytest.fixture
def volume(running: gluster.Gluster) -> Iterator[gluster.Gluster]:
    """The volume, empty and with all processes running."""
    yield running
    running.start()
    running.clear()


@pytest.fixture
def nodes(volume: gluster.Gluster) -> list[Path]:
    """The volume as it is mounted on two nodes."""
    return [node.mount for node in volume.nodes]


@pytest.fixture(scope="session")
def mounted(fuse: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[sshfs.Mount]]:
    """Two sshfs mounts of one folder."""
    need(sshfs.PACKAGES, sshfs.PATH)
    with sshfs.mounted_twice(tmp_path_factory.mktemp("sshfs")) as mounts:
        yield mounts


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
        ((code, output),) = commands.run(commands.build(tree, folder / container, container))
        assert code == 0, output
    return {container: digests(folder / container) for container in ("npy", "hdf5")}
