"""Work in a folder that other processes and nodes use, too: locks, and waiting for the changes of other nodes.

On a network file system, a node shows the changes of others late, and locks may exclude nobody.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from decodeonce.errors import (
    CHANGED_ELSEWHERE_ERRORS,
    REPLACED_ERRORS,
    UNSUPPORTED_ERRORS,
    UNWRITABLE_ERRORS,
    DecodeonceError,
    Stopped,
)
from decodeonce.host import network_file_system
from decodeonce.store import disk
from decodeonce.store.files import make_folder, remove_file
from decodeonce.store.layout import StorePaths

LOCK = "lock"  # file name in the locked folder
LOCK_SECONDS = 10.0  # how long a local folder may be removed by others before it can be locked
# sshfs caches names and sizes for 20 s, NFS for 60 s at most (acdirmax).
CACHE_SECONDS = 60.0
P = ParamSpec("P")
T = TypeVar("T")


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
        if waits_for:
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


def missing_error(path: Path) -> FileNotFoundError:
    """Return the cause of an error about a missing file that `patient` waits for."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def patient(folder: Path, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return call(), repeated as long as a node's cache or a change by another node may be why it fails in `folder`.

    On a local file system, the first error is raised. `call` must be safe to repeat.
    """
    patience: Patience | None = None
    while True:
        try:
            return call(*args, **kwargs)
        except (DecodeonceError, OSError) as error:
            patience = _wait_for_change(folder, error, patience)


def _wait_for_change(folder: Path, failed: DecodeonceError | OSError, patience: Patience | None) -> Patience:
    """Wait until another attempt may succeed; raise `failed`, or Stopped after CACHE_SECONDS, if none is worth it."""
    error = _changed_elsewhere(failed, folder)
    if error is None or not on_network(folder):
        raise failed
    what = f"{os.fsdecode(error.filename)}: {error.strerror}"
    if patience is None:
        patience = Patience(CACHE_SECONDS)
        again = f"trying again for {CACHE_SECONDS:.0f} s"
        logging.getLogger("decodeonce").warning("%s; another node may be changing it; %s", what, again)
    if not patience.wait():
        if isinstance(failed, DecodeonceError) or error.errno == errno.EPERM:
            raise failed
        advice = "another node may be changing it, or the file server may be down; run the same command again"
        raise Stopped(f"{what}; {advice}") from None
    return patience


def patient_if_there(folder: Path, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `patient` if `folder` holds a store or a build; otherwise return call() at once: the path may be wrong."""
    paths = StorePaths(folder)
    if os.path.lexists(paths.manifest) or os.path.lexists(paths.build):
        return patient(folder, call, *args, **kwargs)
    return call(*args, **kwargs)


def _changed_elsewhere(error: BaseException | None, folder: Path) -> OSError | None:
    """Return the OSError that is or caused `error`, if it is about a file of `folder` that another node may change."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in CHANGED_ELSEWHERE_ERRORS and error.filename is not None:
            path = Path(os.fsdecode(error.filename)).absolute()
            if path.is_relative_to(folder.absolute()):
                return error
        error = error.__cause__ or error.__context__
    return None
