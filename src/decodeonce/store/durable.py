"""Durable changes: what these functions wrote, made or removed stays so after the machine has crashed."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from decodeonce.errors import naming
from decodeonce.store import disk
from decodeonce.store.regular_files import REPLACED, reading

GATHERED = 1 << 20  # small chunks are written so many bytes at a time
_FALLOC_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_UNFLUSHABLE = {errno.EINVAL, errno.EBADF, errno.EROFS}

# Files.


def write_atomic(path: Path, chunks: Iterable[bytes | memoryview], *, scratch: Path | None = None) -> None:
    """Make `path` hold the chunks, whole or not at all, durably: temporary file, fsync, rename, fsync of the folder.

    The temporary file, which a kill leaves, lies in `scratch` (default: path's folder) on the same file system.
    """
    temporary = (scratch or path.parent) / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with naming(path):
            fd = disk.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                for data in _gathered(chunks):
                    append(fd, data)
                disk.fsync(fd)
            finally:
                disk.close(fd)
            disk.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # report the first error
            disk.unlink(temporary)
        raise
    sync_folder(path.parent)


def _gathered(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | bytearray | memoryview]:
    """The same bytes in pieces that are worth a system call each."""
    small = bytearray()
    for chunk in chunks:
        if len(small) + len(chunk) > GATHERED:
            yield small
            small = bytearray()
        if len(chunk) > GATHERED:
            yield chunk
        else:
            small += chunk
    yield small


@contextmanager
def writing(path: Path, flags: int = os.O_WRONLY) -> Iterator[int]:
    """A descriptor of a file to change in place; flushed at the end. Every OSError meanwhile names the file."""
    with naming(path):
        fd = disk.open_file(path, flags)
        try:
            yield fd
            disk.fsync(fd)
        finally:
            disk.close(fd)


def append(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data` at the current position of the file `fd`, also if the system writes less at a time."""
    left = memoryview(data)
    while left.nbytes:
        left = left[disk.write(fd, left) :]


def write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, also if the system writes less at a time."""
    left = memoryview(data)
    while left.nbytes:
        written = disk.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def cut_file(path: Path, nbytes: int) -> None:
    """Cut a file to so many bytes."""
    with writing(path) as fd:
        disk.ftruncate(fd, nbytes)


def reserve(fd: int, nbytes: int, path: Path, *, offset: int = 0) -> bool:
    """Reserve `nbytes` of the file `path`, open as `fd`, from `offset`; return False if the file system cannot.

    Raises OSError (ENOSPC, EDQUOT) if there is no room.
    """
    while True:
        try:
            with naming(path):
                disk.fallocate(fd, offset, nbytes)
            return True
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno in _FALLOC_UNSUPPORTED:
                return False
            raise


def sync_file(path: Path) -> None:
    """Flush a file, whichever process wrote it."""
    with reading(path) as file:
        disk.fsync(file.fileno())


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    with _gone_is_fine():
        disk.unlink(path)


# Folders.


def sync_folder(path: Path) -> None:
    """Flush the names in a folder. Does nothing if the file system cannot, or the user may not read the folder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        with naming(path):
            disk.fsync(fd)
    except OSError as error:
        if error.errno not in _UNFLUSHABLE:
            raise
    finally:
        disk.close(fd)


def make_folder(path: Path) -> None:
    """Make the folder `path` and its parents, unless they are there. FileExistsError if a file is in the way."""
    if not path.is_dir():
        make_folder(path.absolute().parent)
        with suppress(FileExistsError):  # another process may make it, too
            disk.mkdir(path)
        if not _is_folder_or_gone(path):
            raise FileExistsError(errno.EEXIST, "a file is in the way, expected a folder", str(path))
    sync_folder(path.absolute().parent)  # also if it was there: the process that made it may have been killed before


def _is_folder_or_gone(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode) or path.is_dir()
    except FileNotFoundError:  # `locked` of another process has just removed it
        return True


def remove_tree(path: Path) -> None:
    """Remove a folder with everything in it, if it is there. Links are removed, not followed."""
    with _gone_is_fine():
        if path.is_symlink():
            return disk.unlink(path)
        empty_folder(path)
        disk.rmdir(path)


def empty_folder(path: Path, *, keep: str = "") -> None:
    """Remove everything in a folder except the name `keep`, as `remove_tree` does."""
    with os.scandir(path) as listing:
        items = [item for item in listing if item.name != keep]
    for item in items:
        if item.is_dir(follow_symlinks=False):
            remove_tree(Path(item.path))
        else:
            remove_file(Path(item.path))


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Ignore that a file is gone, also if its folder was removed through another node (ESTALE)."""
    try:
        yield
    except OSError as error:
        if error.errno not in REPLACED:
            raise
