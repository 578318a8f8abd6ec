"""A real network file system on this machine: a GlusterFS volume of two bricks, mounted twice, as on two nodes.

The processes and translators are those of a distributed volume on a cluster. glusterd itself is not used, because it
keeps its state in system folders and takes seconds to start.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.cluster.until import until
from tests.packages import PATH, Packages

PACKAGES: Packages = {"glusterfs-server": "glusterd", "glusterfs-client": "mount.glusterfs"}
HOST = "127.0.0.1"


class Gluster:
    """Two bricks and two mounts of their volume, all in `folder`. A mount acts as a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bricks = [Brick(folder, number) for number in range(2)]
        self.nodes = [Node(folder, number, self.bricks) for number in range(2)]

    def start(self) -> None:
        """Start all processes that are not running; return when both mounts respond."""
        for brick in self.bricks:
            brick.start()
        for node in self.nodes:  # one after the other, because the first access creates the layout of the root folder
            node.start()
            node.wait_for(self.bricks)
            os.listdir(node.mount)

    def clear(self) -> None:
        """Remove all files."""
        until(self._is_empty, "the volume cannot be emptied")

    def _is_empty(self) -> bool:
        """Remove all files; return whether the volume is empty. A removed folder may be listed for a while."""
        for item in self.nodes[0].mount.iterdir():
            shutil.rmtree(item, ignore_errors=True)
        return not os.listdir(self.nodes[0].mount)

    def stop(self) -> None:
        """Unmount the volume and kill all processes."""
        for node in self.nodes:
            node.stop()
        for brick in self.bricks:
            brick.kill()


class Brick:
    """A server for one folder on a local disk."""

    def __init__(self, folder: Path, number: int) -> None:
        self.name, self.port = f"brick{number}", free_port()
        self._files, self._volume = folder / self.name, folder / f"{self.name}.vol"
        self._log = folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._files.mkdir()
        for name, value in (("gfid", b"\0" * 15 + b"\1"), ("glusterfs.volume-id", VOLUME.bytes)):
            os.setxattr(self._files, f"trusted.{name}", value)
        self._volume.write_text(_stacked(_brick_translators(self._files, self.name, self.port)))

    def start(self) -> None:
        """Start the server without waiting for it."""
        if self._process is None:
            self._process = _daemon("glusterfsd", "-f", str(self._volume), "-l", str(self._log))

    def kill(self) -> None:
        """Kill the server, as a power failure would; `start` serves the same files again."""
        _killed(self._process)
        self._process = None


class Node:
    """A client that mounts the volume, as on a node."""

    def __init__(self, folder: Path, number: int, bricks: list[Brick]) -> None:
        self.mount = folder / f"node{number}"
        self._volume, self._log = folder / f"node{number}.vol", folder / f"node{number}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.mount.mkdir()
        self._volume.write_text(_client_volume(bricks))

    def start(self) -> None:
        """Mount the volume; return when it is mounted."""
        if self._process is None:
            self.stop()  # a stale mount without a client prevents a new one
            options = ["-f", str(self._volume), "-l", str(self._log), "--process-name", "fuse"]
            self._process = _daemon("glusterfs", *options, str(self.mount))
            until(lambda: os.path.ismount(self.mount), f"{self.mount}: not mounted")

    def kill(self) -> None:
        """Kill the client. The folder stays mounted, and every call in it fails."""
        _killed(self._process)
        self._process = None

    def stop(self) -> None:
        """Unmount the volume, even if files are open."""
        self.kill()
        subprocess.run(["umount", "-l", str(self.mount)], capture_output=True, check=False)

    def wait_for(self, bricks: list[Brick]) -> None:
        """Wait until the client is connected to these bricks; after a restart this takes about 3 s."""
        for brick in bricks:
            until(partial(self._is_connected, brick), f"{self.mount}: {brick.name} is away")

    def _is_connected(self, brick: Brick) -> bool:
        state = self.mount / ".meta/graphs/active" / f"client-{brick.name}" / "private"
        return "connected = 1" in state.read_text()


VOLUME = uuid.UUID("0b870f47-e6e1-4f6a-99db-8daa0c45ff8c")


def _brick_translators(files: Path, name: str, port: int) -> Iterator[tuple[str, str, dict[str, object]]]:
    yield f"{name}-posix", "storage/posix", {"directory": files, "volume-id": VOLUME}
    yield f"{name}-access-control", "features/access-control", {}
    yield f"{name}-locks", "features/locks", {}
    yield f"{name}-upcall", "features/upcall", {}
    yield f"{name}-io-threads", "performance/io-threads", {}
    yield name, "debug/io-stats", {}
    server = {"transport-type": "tcp", "transport.socket.bind-address": HOST, "transport.socket.listen-port": port}
    yield f"{name}-server", "protocol/server", {**server, f"auth.addr.{name}.allow": HOST}


def _client_volume(bricks: list[Brick]) -> str:
    ends = []
    for brick in bricks:
        server = {"remote-host": HOST, "remote-port": brick.port, "remote-subvolume": brick.name}
        ends.append((f"client-{brick.name}", "protocol/client", {"transport-type": "tcp", **server}))
    texts = [_translator(name, kind, options, []) for name, kind, options in ends]
    texts.append(_translator("distribute", "cluster/distribute", {}, [name for name, _, _ in ends]))
    stack = ("features/utime", *(f"performance/{p}" for p in ("write-behind", "open-behind", "quick-read", "md-cache")))
    below = "distribute"
    for kind in (*stack, "performance/io-threads", "debug/io-stats"):
        name = kind.partition("/")[2]
        texts.append(_translator(name, kind, {"noatime": "on"} if name == "utime" else {}, [below]))
        below = name
    return "".join(texts)


def _stacked(translators: Iterator[tuple[str, str, dict[str, object]]]) -> str:
    texts: list[str] = []
    below: list[str] = []
    for name, kind, options in translators:
        texts.append(_translator(name, kind, options, below))
        below = [name]
    return "".join(texts)


def _translator(name: str, kind: str, options: dict[str, object], below: list[str]) -> str:
    lines = [f"volume {name}", f"type {kind}", *(f"option {key} {value}" for key, value in options.items())]
    return "\n".join([*lines, *([f"subvolumes {' '.join(below)}"] if below else []), "end-volume\n\n"])


@contextmanager
def running(folder: Path) -> Iterator[Gluster]:
    """Run a volume in `folder` for the duration of the context; this requires root and /dev/fuse."""
    gluster = Gluster(folder)
    try:
        gluster.start()
        yield gluster
    finally:
        gluster.stop()


def _daemon(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    found = shutil.which(program, path=PATH)
    return subprocess.Popen([str(found), "--no-daemon", *arguments], stdin=quiet, stdout=quiet, stderr=quiet)


def _killed(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as server:
        server.bind((HOST, 0))
        port: int = server.getsockname()[1]
        return port
