"""A real network file system on this machine: a GlusterFS volume of two bricks, mounted twice, as on two nodes.

The processes and translators are those of a distributed volume on a cluster. glusterd itself is not used, because it
keeps its state in system folders and takes seconds to start.
"""

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import NamedTuple

from tests.cluster.slurm import free_ports
from tests.cluster.until import until
from tests.packages import PATH, Packages

PACKAGES: Packages = {"glusterfs-server": "glusterd", "glusterfs-client": "mount.glusterfs"}
HOST = "127.0.0.1"
VOLUME = uuid.UUID("0b870f47-e6e1-4f6a-99db-8daa0c45ff8c")


class Gluster:
    """Two bricks and two mounts of their volume, all in `folder`. A mount acts as a node."""

    def __init__(self, folder: Path) -> None:
        self.bricks = [Brick(folder, number) for number in range(2)]
        self.nodes = [Node(folder, number, self.bricks) for number in range(2)]

    def start(self) -> None:
        """Start all processes that are not running; return when both mounts respond."""
        for brick in self.bricks:
            brick.start()
        for node in self.nodes:  # one after the other, because the first access creates the layout of the root folder
            node.start()
            until(node.is_connected, f"{node.mount}: a brick is away")  # after a restart this takes about 3 s
            os.listdir(node.mount)

    def clear(self) -> None:
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


class Volume(NamedTuple):
    """A volume, and the volume file that ends with it."""

    name: str
    file: str


class Daemon:
    """A process with this volume file, which is started again after it was killed."""

    def __init__(self, program: str, file: Path, volume: Volume, *arguments: str) -> None:
        file.write_text(volume.file)
        log = str(file.with_suffix(".log"))
        self._command = [str(shutil.which(program, path=PATH)), "--no-daemon", "-f", str(file), "-l", log, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process without waiting for it."""
        if self._process is None:
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(self._command, stdin=quiet, stdout=quiet, stderr=quiet)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Brick(Daemon):
    """A server for one folder on a local disk."""

    def __init__(self, folder: Path, number: int) -> None:
        self.name, [self.port] = f"brick{number}", free_ports(1)
        files = folder / self.name
        files.mkdir()
        for name, value in (("gfid", b"\0" * 15 + b"\1"), ("glusterfs.volume-id", VOLUME.bytes)):
            os.setxattr(files, f"trusted.{name}", value)
        below = translator(f"{self.name}-posix", "storage/posix", directory=files, volume_id=VOLUME)
        for kind in ("features/access-control", "features/locks", "features/upcall", "performance/io-threads"):
            below = translator(f"{self.name}-{kind.partition('/')[2]}", kind, below)
        options = {"transport.socket.bind-address": HOST, "transport.socket.listen-port": self.port}
        options |= {"transport-type": "tcp", f"auth.addr.{self.name}.allow": HOST}
        served = translator(self.name, "debug/io-stats", below)
        volume = translator(f"{self.name}-server", "protocol/server", served, **options)
        super().__init__("glusterfsd", folder / f"{self.name}.vol", volume)


class Node(Daemon):
    """A client that mounts the volume, as on a node. After `kill`, the folder stays mounted, and every call fails."""

    def __init__(self, folder: Path, number: int, bricks: list[Brick]) -> None:
        self.mount, self._bricks = folder / f"node{number}", bricks
        self.mount.mkdir()
        server = {"transport_type": "tcp", "remote_host": HOST}
        clients = [
            translator(f"client-{b.name}", "protocol/client", **server, remote_port=b.port, remote_subvolume=b.name)
            for b in bricks
        ]
        below = translator("utime", "features/utime", translator("all", "cluster/distribute", *clients), noatime="on")
        for name in ("write-behind", "open-behind", "quick-read", "md-cache", "io-threads"):
            below = translator(name, f"performance/{name}", below)
        volume = translator("io-stats", "debug/io-stats", below)
        file = folder / f"node{number}.vol"
        super().__init__("glusterfs", file, volume, "--process-name", "fuse", str(self.mount))

    def start(self) -> None:
        if self._process is None:
            self.stop()  # a stale mount without a client prevents a new one
            super().start()
            until(lambda: os.path.ismount(self.mount), f"{self.mount}: not mounted")

    def stop(self) -> None:
        """Unmount the volume, even if files are open."""
        self.kill()
        subprocess.run(["umount", "-l", str(self.mount)], capture_output=True, check=False)

    def is_connected(self) -> bool:
        """Return whether the client is connected to all bricks."""
        clients = [self.mount / f".meta/graphs/active/client-{brick.name}/private" for brick in self._bricks]
        return all("connected = 1" in client.read_text() for client in clients)


def translator(name: str, kind: str, *below: Volume, **options: object) -> Volume:
    """Return a volume of this kind, on top of those `below`."""
    lines = [f"volume {name}", f"type {kind}", *(f"option {key.replace('_', '-')} {options[key]}" for key in options)]
    lines += [f"subvolumes {' '.join(volume.name for volume in below)}"] if below else []
    return Volume(name, "\n".join([*(volume.file for volume in below), *lines, "end-volume", ""]))
