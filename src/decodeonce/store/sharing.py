"""Locks of folders that other processes and nodes use, too.

On a network file system, locks may exclude nobody, and a node may show the changes of others late.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from decodeonce.errors import REPLACED_ERRORS, UNSUPPORTED_ERRORS, UNWRITABLE_ERRORS
from decodeonce.host import network_file_system
from decodeonce.store import disk
from decodeonce.store.files import make_folder

LOCK = "lock"  # file name in the locked folder
LOCK_SECONDS = 10.0  # how long a local folder may be removed by others before it can be locked
# sshfs caches names and sizes for 20 s, NFS for 60 s at most (acdirmax).
CACHE_SECONDS = 60.0


@contextmanager
def locked(folder: Path, *, waits_for: str) -> Iterator[None]:
    """Hold the lock of a private folder. Create the folder first, and remove it at the end if it is empty by then.

    The lock is on the file LOCK in the folder, because on some network file systems a lock on the folder itself
    excludes only processes of the same node. The lock ends with its process. Nothing is locked if the file system has
    no locks or is read-only. A warning says if this waits for another process; `waits_for` names its command.
    """
    fd = _lock(folder, waits_for)
    try:
        yield
    finally:
        if fd is not None:
            with suppress(OSError):
                if os.listdir(folder) == [LOCK]:
                    disk.unlink(folder / LOCK)
            disk.close(fd)  # before rmdir: NFS keeps a name in the folder for a removed file that is still open
            with suppress(OSError):  # usually because the folder is not empty
                disk.rmdir(folder)


def _lock(folder: Path, waits_for: str) -> int | None:
    """Lock the folder's lock file and return its descriptor, or None if the folder is not writable."""
    path = folder / LOCK
    patience: Patience | None = None
    while True:
        fd = None
        try:
            make_folder(folder)
            fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
            if _waited_for_lock(fd, folder, waits_for):
                patience = None
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        except BaseException as error:  # also Ctrl-C: an open file could keep the lock
            if fd is not None:
                disk.close(fd)
            if not isinstance(error, OSError):
                raise
            if error.errno in UNWRITABLE_ERRORS and folder.parent.is_dir():
                return None
            # Another process has just removed the file or the folder, or another node has just created them.
            patience = patience or Patience(CACHE_SECONDS if on_network(folder) else LOCK_SECONDS)
            if error.errno not in REPLACED_ERRORS or not patience.wait():
                raise


def _waited_for_lock(fd: int, folder: Path, waits_for: str) -> bool:
    """Lock a file, and return whether this had to wait for another process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logging.getLogger("decodeonce").warning("%s: waiting for %s to finish", folder.parent, waits_for)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return True
    except OSError as error:
        if error.errno not in UNSUPPORTED_ERRORS:
            raise
    return False


def on_network(path: Path) -> bool:
    """Whether `path`, which may not exist, is on a network file system."""
    for folder in (path.absolute(), *path.absolute().parents):
        try:
            return network_file_system(folder) is not None
        except OSError:
            continue
    return False


class Patience:
    """Pauses between attempts, 10 ms at first and 2 s at most, for `seconds` in total."""

    def __init__(self, seconds: float) -> None:
        self._end, self._pause = time.monotonic() + seconds, 0.01

    def wait(self) -> bool:
        """Sleep and return True, or return False if the time is over."""
        if time.monotonic() > self._end:
            return False
        time.sleep(self._pause)
        self._pause = min(1.5 * self._pause, 2.0)
        return True
