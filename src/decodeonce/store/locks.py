"""Locks on private folders: one process at a time works in such a folder, even across nodes."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from decodeonce.errors import REPLACED_ERRORS, UNSUPPORTED_ERRORS, UNWRITABLE_ERRORS
from decodeonce.store import disk
from decodeonce.store.durable import make_folder, remove_file
from decodeonce.store.network import CACHE_SECONDS, Patience, on_network

LOCK = "lock"  # file name in the locked folder
LOCK_SECONDS = 10.0  # how long a local folder may be removed by others before it can be locked


@contextmanager
def locked(folder: Path, *, waits_for: str = "") -> Iterator[None]:
    """Hold the lock of a private folder. Create the folder first, and remove it at the end if it is empty by then.

    The lock is on the file LOCK in the folder, because on some network file systems a lock on the folder itself
    excludes only processes of the same node. The lock ends with its process. Nothing is locked if the file system has
    no locks or is read-only. If `waits_for` names the command that may hold the lock, waiting is logged.
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


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Create the file `path` and remove it at the end. Yield False if another process has created it.

    This excludes other nodes even if their locks do not. But the file stays if its process is killed, so it is for
    work of milliseconds.
    """
    try:
        disk.close(disk.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.EPERM):  # EPERM: sshfs, if its cache does not have the file yet
            raise
        yield False
        return
    try:
        yield True
    finally:
        remove_file(path)


def _lock(folder: Path, waits_for: str) -> int | None:
    """Lock the folder's lock file and return its descriptor, or None if the folder is not writable."""
    path, patience = folder / LOCK, _patience(folder)
    while True:
        with ExitStack() as opened:
            try:
                make_folder(folder)
                fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
                opened.callback(disk.close, fd)
                if _waited_for_lock(fd, folder, waits_for):
                    patience = _patience(folder)
                if os.path.samestat(os.fstat(fd), os.lstat(path)):
                    opened.pop_all()
                    return fd
                error = OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            except OSError as failed:
                error = failed
        if error.errno in UNWRITABLE_ERRORS and folder.parent.is_dir():
            return None
        # Another process has just removed the file or the folder, or another node has just created them.
        if error.errno not in REPLACED_ERRORS or not patience.wait():
            raise error


def _patience(folder: Path) -> Patience:
    return Patience(CACHE_SECONDS if on_network(folder) else LOCK_SECONDS)


def _waited_for_lock(fd: int, folder: Path, waits_for: str) -> bool:
    """Lock a file, and return whether this had to wait for another process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waits_for:
            logging.getLogger("decodeonce").warning("%s: waiting for %s to finish", folder.parent, waits_for)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return True
    except OSError as error:
        if error.errno not in UNSUPPORTED_ERRORS:
            raise
    return False
