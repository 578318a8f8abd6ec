"""Locks on private folders: one process at a time works in such a folder, even across nodes."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from decodeonce.store import disk
from decodeonce.store.durable import make_folder
from decodeonce.store.regular_files import REPLACED

LOCK = "lock"  # file name in the locked folder
LOCK_TRIES = 1000  # ten seconds
_LOCK_UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_UNWRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}


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


def _lock(folder: Path, waits_for: str) -> int | None:
    """Lock the folder's lock file and return its descriptor, or None if the folder is not writable."""
    path, tries = folder / LOCK, 0
    while True:
        with ExitStack() as opened:
            try:
                make_folder(folder)
                fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
                opened.callback(disk.close, fd)
                if _waited_for_lock(fd, folder, waits_for):
                    tries = 0
                if os.path.samestat(os.fstat(fd), os.lstat(path)):
                    opened.pop_all()
                    return fd
                error = OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            except OSError as failed:
                error = failed
        if error.errno in _UNWRITABLE and folder.parent.is_dir():
            return None
        # Another process has just removed the file or the folder, or another node has just created them.
        tries += 1
        if error.errno not in REPLACED or tries > LOCK_TRIES:
            raise error
        time.sleep(0.01)


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
        if error.errno not in _LOCK_UNSUPPORTED:
            raise
    return False
