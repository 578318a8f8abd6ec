"""The system calls that create, change or remove files, and two that read: `preadv` and `pread`.

Builds, stores and parts write only through these functions, called as `disk.NAME`. No other module of `store`
and `prep` changes a file; a test parses the code to ensure this. Tests replace these functions to fail, to kill the
process or to lose unflushed data at every call.

`preadv` reads rows and small files of a store (`files.read_at`), and `pread` reads images of a source, so that tests
can make these reads fail, too. Other reads do not go through this module.

No call follows a symbolic link below a store's root, because a store from an archive may hold links to anywhere. This
holds for the store's files, for its private folders and for everything in those. Links on the way to the root belong
to the user and are followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from decodeonce.store.layout import INSIDE_PRIVATE, PRIVATE_FOLDER

LINK = "a symbolic link, but decodeonce does not write through links in a store"
# Never writable by others, even if the umask allows it.
FILE_MODE, FOLDER_MODE = 0o664, 0o775

write = os.write
pwrite = os.pwrite
pread = os.pread
preadv = os.preadv
ftruncate = os.ftruncate
fsync = os.fsync
fdatasync = os.fdatasync


def open_file(path: Path, flags: int) -> int:
    """Open a file with the flags of os.open, without following a link, and return its descriptor."""
    checked = _checked(path)
    try:
        return os.open(checked, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        raise _link_error(path) if error.errno == errno.ELOOP else error from None


def replace(source: Path, dest: Path) -> None:
    """Rename `source` to `dest`, and replace a file that is already there. Errors name `dest`."""
    with _naming(dest):
        os.replace(_checked(source), _checked(dest))


def link(source: Path, dest: Path) -> None:
    """Give `source` the name `dest`, too. Raise FileExistsError, which names `dest`, if that exists."""
    with _naming(dest):
        os.link(_checked(source), _checked(dest), follow_symlinks=False)


def unlink(path: Path) -> None:
    """Remove one file or link."""
    os.unlink(_checked(path))


def rmdir(path: Path) -> None:
    """Remove one empty folder."""
    os.rmdir(_checked(path))


def close(fd: int) -> None:
    """Close a descriptor and ignore errors, which would hide the error that led here.

    Written data has been flushed by then. The system closes the descriptor even if it reports an error, as FUSE does
    when its server is unreachable.
    """
    with suppress(OSError):
        os.close(fd)


def mkdir(path: Path) -> None:
    """Create one folder."""
    os.mkdir(_checked(path), FOLDER_MODE)


def _checked(path: Path) -> str:
    """Return a path as text. Raise OSError if the private folder that holds it, or a folder between them, is a link.

    A user's own folder may have the name of a private one. It is not private if the folders in it have other names.
    """
    inner, outer = path.parent, path.parent.parent
    folders = [outer, inner] if INSIDE_PRIVATE.fullmatch(inner.name) else [inner]
    if PRIVATE_FOLDER.fullmatch(folders[0].name):
        for folder in folders:
            if os.path.islink(folder):
                raise _link_error(folder)
    return str(path)


def _link_error(path: Path) -> OSError:
    return OSError(errno.ELOOP, LINK, str(path))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an OSError about two files name only this one, except if it names a link."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def fallocate(fd: int, offset: int, nbytes: int) -> None:
    """Reserve space by the fallocate system call. OSError has EOPNOTSUPP, ENOSYS or EINVAL if the file system lacks it.

    os.posix_fallocate does not suit: glibc emulates it by writing into every page, which takes hours on NFS and races
    with other writers.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, 0, offset, nbytes) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
