"""Open files of the user: regular files only, with limits on what is read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decodeonce.errors import BuildError, raise_file_system_failure
from decodeonce.store import disk

# O_NONBLOCK: opening a FIFO without a writer would wait forever. It has no effect on regular files.
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
MAX_TEXT_BYTES = 1 << 26  # limit for a file that is read whole; ImageNet's largest, LOC_val_solution.csv, has 2.3 MB
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | bytes | Path, flags: int = FLAGS) -> int:
    """Open a regular file and return its descriptor; raise OSError for anything else, without waiting."""
    fd = os.open(path, flags)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, KINDS.get(stat.S_IFMT(mode), "not a regular file"), path)
    except OSError:
        disk.close(fd)
        raise
    return fd


def read_small(path: str | bytes | Path, most: int = MAX_TEXT_BYTES) -> bytes:
    """Read a whole regular file; raise OSError if it has more than `most` bytes."""
    with open(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", path)
    return data


@contextmanager
def expecting(path: str | bytes | Path, expected: str) -> Iterator[None]:
    """Turn an OSError into Stopped if it may pass, otherwise into a BuildError that ends with `expected`."""
    try:
        yield
    except OSError as error:
        raise_file_system_failure(error, path)
        raise BuildError(f"{os.fsdecode(path)}: {error.strerror}; {expected}") from None
