"""Two sshfs mounts of one folder, as on two nodes: locks exclude nobody, and names are cached for 20 s.

Each sshfs talks to its own sftp-server of OpenSSH through a socket; no sshd is needed.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import packages
from tests.cluster.until import until

PACKAGES: packages.Packages = {"sshfs": "sshfs", "openssh-sftp-server": "sftp-server"}
PATH = f"{packages.PATH}:/usr/lib/openssh:/usr/libexec/openssh"


class Mount:
    """A mount of `folder` at `path`."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.path = path
        path.mkdir()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server, client = (str(shutil.which(program, path=PATH)) for program in ("sftp-server", "sshfs"))
            command = [client, f"server:{folder}", str(path), "-f", "-o", "passive"]
            self._server = subprocess.Popen([server], stdin=theirs.fileno(), stdout=theirs.fileno())
            self._client = subprocess.Popen(command, stdin=ours.fileno(), stdout=ours.fileno())
        until(lambda: os.path.ismount(path), f"{path}: not mounted")

    def pause(self, *, stopped: bool) -> None:
        """Suspend the server, or let it continue."""
        self._server.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)

    def stop(self) -> None:
        self._server.kill()
        subprocess.run(["umount", "-l", str(self.path)], check=False)
        for process in (self._server, self._client):
            process.wait()


@contextmanager
def mounted_twice(folder: Path) -> Iterator[list[Mount]]:
    """Mount folder/served at folder/node0 and folder/node1."""
    (folder / "served").mkdir()
    with ExitStack() as stopping:
        mounts = []
        for number in range(2):
            mounts.append(Mount(folder / "served", folder / f"node{number}"))
            stopping.callback(mounts[-1].stop)
        yield mounts
