"""Read regular files only. A pipe is refused, and a file that another node has just replaced is opened again."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from decodeonce.errors import REPLACED_ERRORS, StoreError, add_path_to_errors
from decodeonce.store import disk

NAME_SECONDS = 1.1  # FUSE file systems cache for one second which file has a name


@contextmanager
def reading(path: Path, *, buffering: int = -1) -> Iterator[BinaryIO]:
    """Open a file with `open_regular`. Every OSError in the block names the file, and closing raises none."""
    with add_path_to_errors(path):
        fd = open_regular(path)
        try:
            with open(fd, "rb", buffering=buffering, closefd=False) as file:
                yield file
        finally:
            disk.close(fd)


def read_regular(path: Path, *, most: int | None = None) -> bytes:
    """Read a small file. Raise StoreError if it is not a regular file, or has more than `most` bytes."""
    with reading(path, buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise StoreError(f"{path}: {size} bytes, expected at most {most}; restore it from a copy")
        data = bytearray(size)
        return bytes(data[: read_at(file.fileno(), memoryview(data), 0)])


def read_at(fd: int, out: memoryview, offset: int) -> int:
    """Fill `out` from `offset` and return the number of bytes read, which is smaller only at the end of the file."""
    done = 0
    while done < out.nbytes:
        got = disk.preadv(fd, [out[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


def open_regular(path: Path, *, retry: bool = True) -> int:
    """Open a file for reading and return its descriptor. Raise StoreError for a pipe, folder or device.

    If another process has just replaced the file, a network file system may still open the old one, which can no
    longer be read. Then the file is opened again after NAME_SECONDS.
    """
    with add_path_to_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # NONBLOCK: do not wait for a pipe's writer
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            if regular:
                os.pread(fd, 1, 0)
        except OSError as error:
            if error.errno not in REPLACED_ERRORS:
                return fd  # the caller gets the same error when it reads the file
            disk.close(fd)
            if not retry:
                raise
            time.sleep(NAME_SECONDS)
            return open_regular(path, retry=False)
    if not regular:
        disk.close(fd)
        raise StoreError(f"{path}: a folder, pipe or device, expected a file")
    return fd
