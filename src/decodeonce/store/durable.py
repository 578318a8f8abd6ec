"""Durable changes: what these functions wrote, made or removed is still so after a crash of the machine."""

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
from decodeonce.store.regular_files import REPLACED

GATHERED = 1 << 20  # small chunks are written so many bytes at a time
_FALLOC_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


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
        with suppress(OSError):  # what came first is what is to be told
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


def append(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data` where the file `fd` is at; short writes go on."""
    left = memoryview(data)
    while left.nbytes:
        left = left[disk.write(fd, left) :]


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`; short writes go on, errors are OSError."""
    while data.nbytes:
        written = disk.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def cut_file(path: Path, nbytes: int) -> None:
    """Cut a file to so many bytes, durably."""
    fd = disk.open_file(path, os.O_WRONLY)
    try:
        with naming(path):
            disk.ftruncate(fd, nbytes)
            disk.fsync(fd)
    finally:
        disk.close(fd)


def reserve(fd: int, nbytes: int, path: Path, *, offset: int = 0) -> bool:
    """Reserve `nbytes` of the file `path`, open as `fd`, from `offset` with fallocate(2); False where there is none.

    Raises OSError (ENOSPC, EDQUOT) when there is no room.
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
    """Make a file durable, whoever wrote it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            disk.fsync(fd)
    finally:
        disk.close(fd)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; one that cannot be flushed, or may not be read, is left alone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        with naming(path):
            disk.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EROFS):
            raise
    finally:
        disk.close(fd)


def make_folder(path: Path) -> None:
    """Have the folder `path` be there, its parents, too; durably. FileExistsError where a file is in the way."""
    if not path.is_dir():
        make_folder(path.absolute().parent)
        with suppress(FileExistsError):  # another process may make it, too
            disk.mkdir(path)
        if not _is_folder_or_gone(path):
            raise FileExistsError(errno.EEXIST, "a file is in the way, expected a folder", str(path))
    sync_folder(path.absolute().parent)  # where it was there, too: who made it may have been killed before this


def _is_folder_or_gone(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode) or path.is_dir()
    except FileNotFoundError:  # `locked` of another process has just removed it
        return True


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    with _gone_is_fine():
        disk.unlink(path)


def remove_tree(path: Path) -> None:
    """Remove a folder with everything in it. Links are removed, not followed; what is gone already is fine."""
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
    """Ignore that a file is gone, also where its folder was removed through another node (ESTALE)."""
    try:
        yield
    except OSError as error:
        if error.errno not in REPLACED:
            raise


def data_ranges(fd: int, start: int, end: int) -> list[range]:
    """Where in [start, end) something was written, neither hole nor only reserved: whole blocks, in order.

    All of it where the file system does not tell.
    """
    found: list[range] = []
    try:
        while start < end:
            data = os.lseek(fd, start, os.SEEK_DATA)
            start = os.lseek(fd, data, os.SEEK_HOLE)
            if data < end:
                found.append(range(data, min(start, end)))
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole from there on
            return found
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return [range(start, end)]
        raise
    return found
