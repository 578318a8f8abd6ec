"""Every write of a store or a build goes through here: atomic files, positioned writes, space, durability."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from decodeonce.errors import StoreError
from decodeonce.store import disk

PAGE = 4096
# What reading gives where another process has renamed a new file over an open one, or removed it, on another node.
REPLACED = {errno.ENOENT, errno.ESTALE}
NAME_SECONDS = 1.1  # FUSE file systems remember for one second which file a name was
GATHERED = 1 << 20  # small chunks are written so many bytes at a time
_FALLOC_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_LOCK_UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_UNWRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}
LOCK = "lock"  # in the private folder that `locked` guards
LOCK_TRIES = 1000  # ten seconds


def page_aligned_buffer(nbytes: int) -> memoryview:
    """A zeroed private anonymous buffer of `nbytes` that begins on a page; it is given back when the last view goes."""
    return memoryview(mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:nbytes]


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


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Ignore that a file is gone, also where its folder was removed through another node (ESTALE)."""
    try:
        yield
    except OSError as error:
        if error.errno not in REPLACED:
            raise


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


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    with _gone_is_fine():
        disk.unlink(path)


def cut_file(path: Path, nbytes: int) -> None:
    """Cut a file to so many bytes, durably."""
    fd = disk.open_file(path, os.O_WRONLY)
    try:
        with naming(path):
            disk.ftruncate(fd, nbytes)
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


def sync_file(path: Path) -> None:
    """Make a file durable, whoever wrote it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            disk.fsync(fd)
    finally:
        disk.close(fd)


@contextmanager
def locked(folder: Path, *, waits_for: str = "") -> Iterator[None]:
    """Hold the lock of a private folder; make the folder first, and remove it at the end if nothing else is in it.

    The lock is on the file LOCK in the folder: on some network file systems a lock on the folder itself excludes only
    processes of the same node. It ends with its process. Nobody waits where the file system has no locks, or where
    the folder is read-only. A wait is logged if `waits_for` names who may hold the lock.
    """
    fd = _lock(folder, waits_for)
    try:
        yield
    finally:
        if fd is not None:
            with suppress(OSError):
                if os.listdir(folder) == [LOCK]:
                    disk.unlink(folder / LOCK)
            disk.close(fd)  # before the folder goes: NFS keeps a name for a removed file that is open
            with suppress(OSError):  # not empty, above all
                disk.rmdir(folder)


def _lock(folder: Path, waits_for: str) -> int | None:
    """A descriptor of the folder's lock file, locked; None if nothing can be written there."""
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
        # The holder before has just removed the file or the folder, or another node has just made them.
        tries += 1
        if error.errno not in REPLACED or tries > LOCK_TRIES:
            raise error
        time.sleep(0.01)


def _waited_for_lock(fd: int, folder: Path, waits_for: str) -> bool:
    """Lock a file; return whether another process had it locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waits_for:
            logging.getLogger("decodeonce").warning("%s: waits for %s, which is at it", folder.parent, waits_for)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return True
    except OSError as error:
        if error.errno not in _LOCK_UNSUPPORTED:
            raise
    return False


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError that names no file, as those of descriptors, name this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def open_regular(path: Path) -> int:
    """A descriptor of a file, to read; StoreError where a pipe, folder or device lies there: none is waited for.

    Where another process has just put a new file in its place, a network file system may still give the old one, which
    cannot be read any more: then the name is asked for again when nobody remembers it.
    """
    for last in (False, True):
        fd = _open(path)
        try:
            regular = _is_regular(fd, path)
            break
        except OSError as error:
            disk.close(fd)
            if last or error.errno not in REPLACED:
                raise
            time.sleep(NAME_SECONDS)
    if not regular:
        disk.close(fd)
        raise _not_regular(path)
    return fd


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket
            raise
        raise _not_regular(path) from None


def _is_regular(fd: int, path: Path) -> bool:
    """Whether an open file is a regular one; raises one of REPLACED if it cannot be read any more."""
    with naming(path):
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        try:
            if regular:
                os.pread(fd, 1, 0)
        except OSError as error:
            if error.errno in REPLACED:  # other errors are raised again by whoever reads there
                raise
        return regular


@contextmanager
def reading(path: Path, *, buffering: int = -1) -> Iterator[BinaryIO]:
    """A file opened as by `open_regular`; every OSError meanwhile names it, and closing it raises none."""
    with naming(path):
        fd = open_regular(path)
        try:
            with open(fd, "rb", buffering=buffering, closefd=False) as file:
                yield file
        finally:
            disk.close(fd)


def _not_regular(path: Path) -> StoreError:
    return StoreError(f"{path}: a folder, pipe or device, expected a file")


def read_regular(path: Path, *, most: int | None = None) -> bytes:
    """All of a small file; as `open_regular`, and StoreError where it has more than `most` bytes."""
    fd = open_regular(path)
    try:
        with naming(path):
            data = bytearray(checked_size(fd, path, most))
            return bytes(data[: read_at(fd, memoryview(data), 0)])
    finally:
        disk.close(fd)


def checked_size(fd: int, path: Path, most: int | None) -> int:
    """The size of an open file; StoreError where that is more than `most`."""
    size = os.fstat(fd).st_size
    if most is not None and size > most:
        raise StoreError(f"{path}: {size} bytes, expected at most {most}; restore it from a copy")
    return size


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`; short writes go on, errors are OSError."""
    while data.nbytes:
        written = disk.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def read_at(fd: int, out: memoryview, offset: int) -> int:
    """Fill `out` from `offset`; returns the bytes read, fewer only at the end of the file."""
    done = 0
    while done < out.nbytes:
        got = disk.preadv(fd, [out[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


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


class ShardFile:
    """A shard being written: positioned writes, past the page cache where address, offset and length allow it.

    O_DIRECT saves the copy into the page cache, 0.1 ms of the 1.4 ms that a row costs here, and keeps a night's build
    from evicting what other jobs of the node have cached. What is not page-aligned, or a file system that refuses
    O_DIRECT, takes the ordinary way. Several threads may use one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = disk.open_file(path, os.O_RDWR)
        self._opened = [self._fd]
        self._direct: int | None = None
        try:
            self._direct = disk.open_file(path, os.O_WRONLY | getattr(os, "O_DIRECT", 0))
            self._opened.append(self._direct)
        except OSError as error:
            if error.errno != errno.EINVAL:
                disk.close(self._fd)
                raise

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at `offset`; `data` begins on a page when its offset does (see page_aligned_buffer)."""
        direct = self._direct
        with naming(self.path):
            if direct is not None and offset % PAGE == 0 and _is_pages(data):
                try:
                    return write_at(direct, data, offset)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    self._direct = None  # and open until the end: another thread may be writing through it
            write_at(self._fd, data, offset)

    def read(self, out: memoryview, offset: int) -> int:
        """Fill `out` from `offset`; returns the bytes read."""
        with naming(self.path):
            return read_at(self._fd, out, offset)

    def sync(self) -> None:
        """Make what was written durable (data and size)."""
        with naming(self.path):
            disk.fdatasync(self._fd)

    def close(self) -> None:
        """Close; a second call does nothing."""
        while self._opened:
            disk.close(self._opened.pop())
        self._fd, self._direct = -1, None

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_pages(data: memoryview) -> bool:
    if data.readonly or not data.nbytes or data.nbytes % PAGE:  # ctypes gives no address of the first two
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % PAGE == 0
