"""Opening a user's files: regular ones, of which no more is read than is stated."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decodeonce.errors import BuildError, raise_file_system_failure
from decodeonce.store import disk

# O_NONBLOCK: a FIFO without a writer would be waited for, and is no picture; regular files do not know it.
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
MAX_TEXT_BYTES = 1 << 26  # of a file that is read whole; LOC_val_solution.csv, the largest of ImageNet's, has 2.3 MB
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | bytes | Path, flags: int = FLAGS) -> int:
    """A descriptor of a regular file; raises OSError for whatever else it is, which is never waited for."""
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
    """All bytes of a regular file that is read whole; raises OSError where there are more than `most`."""
    with open(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", path)
    return data


@contextmanager
def expecting(path: str | bytes | Path, expected: str) -> Iterator[None]:
    """Turn an OSError into Stopped if it may pass, else into a BuildError that ends in `expected`."""
    try:
        yield
    except OSError as error:
        raise_file_system_failure(error, path)
        raise BuildError(f"{os.fsdecode(path)}: {error.strerror}; {expected}") from None
