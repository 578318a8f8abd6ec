"""The system calls by which anything is made, changed or removed, and those that read what a build is made of.

Whatever a build, a store, a part or an export writes goes through these, called as `disk.NAME`: nothing else in
`store` and `prep` changes a file (a test parses for it). So a test puts a double here that fails, kills the process or
forgets what was not flushed, at every call in turn.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

# Never for everybody to write, whatever the umask.
FILE_MODE, FOLDER_MODE = 0o664, 0o775

write = os.write
pwrite = os.pwrite
pread = os.pread
preadv = os.preadv
ftruncate = os.ftruncate
fsync = os.fsync
fdatasync = os.fdatasync
replace = os.replace
unlink = os.unlink
rmdir = os.rmdir


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a file, which `flags` of os.open may make."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def mkdir(path: Path) -> None:
    """Make one folder."""
    os.mkdir(path, FOLDER_MODE)


def fallocate(fd: int, offset: int, nbytes: int) -> None:
    """Reserve space with fallocate(2); OSError with EOPNOTSUPP, ENOSYS or EINVAL where there is no such thing.

    Not os.posix_fallocate: glibc emulates it by writing into every page, which on NFS takes hours and races with
    other writers.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "fallocate"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, 0, offset, nbytes) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
