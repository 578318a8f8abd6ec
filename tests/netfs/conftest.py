"""A GlusterFS volume and two sshfs mounts. Each is started for the first test that uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netfs import sshfs
from tests.netfs.gluster import PACKAGES, Gluster, running
from tests.packages import give_up, need


@pytest.fixture(scope="session")
def programs() -> None:
    """Skip these tests if GlusterFS is not installed or cannot be mounted; fail them if CI is set."""
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
        give_up("mounting GlusterFS requires root and /dev/fuse")
    need(PACKAGES)


@pytest.fixture(scope="session")
def volume(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gluster]:
    """A volume of two bricks, mounted on two nodes."""
    with running(tmp_path_factory.mktemp("gluster")) as gluster:
        yield gluster


@pytest.fixture
def gluster(volume: Gluster) -> Iterator[Gluster]:
    """The volume, empty and with all processes running."""
    volume.start()
    yield volume
    volume.start()
    volume.clear()


@pytest.fixture
def nodes(gluster: Gluster) -> list[Path]:
    """The volume as it is mounted on two nodes."""
    return [node.mount for node in gluster.nodes]


@pytest.fixture(scope="session")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[sshfs.Mount]]:
    """Two sshfs mounts of one folder; skipped like GlusterFS."""
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
        give_up("mounting sshfs requires root and /dev/fuse")
    need(sshfs.PACKAGES, sshfs.PATH)
    with sshfs.mounted_twice(tmp_path_factory.mktemp("sshfs")) as mounts:
        yield mounts
