"""Reading regular files: a pipe is not waited for, and a file that another node has just replaced is opened again."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from decodeonce.errors import StoreError, naming
from decodeonce.store import disk

# What reading gives when another node has renamed a new file over an open one, or removed it.
REPLACED = {errno.ENOENT, errno.ESTALE}
NAME_SECONDS = 1.1  # FUSE file systems remember for one second which file a name was


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


def read_regular(path: Path, *, most: int | None = None) -> bytes:
    """All of a small file; StoreError if it is no regular file, or has more than `most` bytes."""
    with reading(path, buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise StoreError(f"{path}: {size} bytes, expected at most {most}; restore it from a copy")
        data = bytearray(size)
        return bytes(data[: read_at(file.fileno(), memoryview(data), 0)])


def read_at(fd: int, out: memoryview, offset: int) -> int:
    """Fill `out` from `offset`; returns the bytes read, fewer only at the end of the file."""
    done = 0
    while done < out.nbytes:
        got = disk.preadv(fd, [out[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


def open_regular(path: Path, *, retry: bool = True) -> int:
    """A descriptor of a file, to read; StoreError if it is a pipe, folder or device.

    If another process has just put a new file in its place, a network file system may still give the old one, which
    cannot be read any more. Then the name is looked up again after NAME_SECONDS.
    """
    with naming(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            if regular:
                os.pread(fd, 1, 0)
        except OSError as error:
            if error.errno not in REPLACED:
                return fd  # the error comes again where the file is read
            disk.close(fd)
            if not retry:
                raise
            time.sleep(NAME_SECONDS)
            return open_regular(path, retry=False)
    if not regular:
        disk.close(fd)
        raise StoreError(f"{path}: a folder, pipe or device, expected a file")
    return fd
