"""The system calls by which anything is made, changed or removed, and those that read what a build is made of.

Whatever a build, a store, a part or an export writes goes through these, called as `disk.NAME`: nothing else in
`store` and `prep` changes a file (a test parses for it). So a test puts a double here that fails, kills the process or
forgets what was not flushed, at every call in turn.

No call follows a symbolic link below a store's root: not one in the place of a file, nor one in the place of a private
folder or of anything in it. An unpacked store from somebody else may hold links to anywhere. Links on the way to the
root are the user's own, and are followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from decodeonce.store.layout import INSIDE_PRIVATE, PRIVATE_FOLDER

LINK = "a symbolic link, and nothing is written through links in a store"
# Never for everybody to write, whatever the umask.
FILE_MODE, FOLDER_MODE = 0o664, 0o775

write = os.write
pwrite = os.pwrite
pread = os.pread
preadv = os.preadv
ftruncate = os.ftruncate
fsync = os.fsync
fdatasync = os.fdatasync


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a file, which `flags` of os.open may make."""
    with _parent(path) as (folder, name):
        try:
            return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE, dir_fd=folder)
        except OSError as error:
            raise _link_error(path) if error.errno == errno.ELOOP else error from None


def replace(source: Path, dest: Path) -> None:
    """Rename `source` to `dest`, in the place of a file that is there."""
    with _parent(source) as (from_folder, from_name), _parent(dest) as (to_folder, to_name):
        os.replace(from_name, to_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)


def unlink(path: Path) -> None:
    """Remove one file or link."""
    with _parent(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def rmdir(path: Path) -> None:
    """Remove one empty folder."""
    with _parent(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def close(fd: int) -> None:
    """Close a descriptor. An error here tells nothing new, and would hide the one that led to it.

    What was written is flushed before. The system closes the descriptor even when it reports an error, as FUSE does
    when the server is away.
    """
    with suppress(OSError):
        os.close(fd)


def mkdir(path: Path) -> None:
    """Make one folder."""
    with _parent(path) as (folder, name):
        os.mkdir(name, FOLDER_MODE, dir_fd=folder)


@contextmanager
def _parent(path: Path) -> Iterator[tuple[int | None, str]]:
    """The parent folder of `path` as a descriptor, and the name in it; no descriptor outside of private folders.

    From the innermost private folder on, each folder is opened in turn, none through a link. Errors name `path`.
    A folder of the user's own with such a name is no private one: what lies in it has other names.
    """
    parts = path.parts
    private = [
        index
        for index, part in enumerate(parts[:-1])
        if PRIVATE_FOLDER.fullmatch(part) and INSIDE_PRIVATE.fullmatch("/".join(parts[index + 1 : -1]))
    ]
    folder: int | None = None
    try:
        if private:
            folder = os.open(Path(*parts[: private[-1]]), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            for index in range(private[-1], len(parts) - 1):
                outer, flags = folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                if os.path.islink(within := Path(*parts[: index + 1])):
                    raise _link_error(within)
                folder = os.open(parts[index], flags, dir_fd=outer)
                close(outer)
        yield folder, parts[-1] if private else str(path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            error.filename = str(path)
        raise
    finally:
        if folder is not None:
            close(folder)


def _link_error(path: Path) -> OSError:
    return OSError(errno.ELOOP, LINK, str(path))


def fallocate(fd: int, offset: int, nbytes: int) -> None:
    """Reserve space with fallocate(2); OSError with EOPNOTSUPP, ENOSYS or EINVAL if the file system has no such thing.

    Not os.posix_fallocate: glibc emulates it by writing into every page, which on NFS takes hours and races with
    other writers.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, 0, offset, nbytes) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
