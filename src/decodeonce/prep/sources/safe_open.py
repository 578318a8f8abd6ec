"""Open files of the user: regular files only, with limits on what is read, and no links that lead out of SRC."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path

from decodeonce.errors import BuildError, Stopped, failure_from, raise_file_system_failure
from decodeonce.remote import is_url
from decodeonce.store import disk
from decodeonce.store.layout import missing_advice

# O_NONBLOCK: opening a FIFO without a writer would wait forever. It has no effect on regular files.
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
MAX_TEXT_BYTES = 1 << 26  # limit for a file that is read whole; ImageNet's largest, LOC_val_solution.csv, has 2.3 MB
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
OUTSIDE = "a link that leads out of SRC: build with --follow-links, or let SRC be a folder that holds both"
KEPT_FOLDERS = 1 << 14  # cached answers for folders: more than ImageNet has classes, a few MB


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
    """Read a whole regular file; raise OSError if it has more than `most` bytes.

    Args:
        path: Path of the file.
        most: Limit in bytes. Default: 64 MiB.

    Example:
        >>> read_small("val.csv")[:10]
        b'path,label'
    """
    with open(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", path)
    return data


@contextmanager
def expecting(path: str | bytes | Path, expected: str) -> Iterator[None]:
    """Turn an OSError into Stopped if a retry may succeed, otherwise into BuildError.

    Unless access is denied, the message of the BuildError ends with `expected`.

    Args:
        path: What the body of the ``with`` statement reads, for the message.
        expected: What was expected there, such as "expected a folder of class folders".

    Example:
        >>> try:
        ...     with expecting("labels.txt", "expected a file with a label per line"):
        ...         text = open("labels.txt").read()
        ... except BuildError as error:
        ...     print(error)
        labels.txt: No such file or directory; expected a file with a label per line
    """
    try:
        yield
    except OSError as error:
        raise_file_system_failure(error, path)
        raise BuildError(f"{os.fsdecode(path)}: {error.strerror}; {expected}") from None


class Links:
    """Decides which links below `root` may be followed.

    Link targets are resolved once per folder, and only for files that are links, so other files cost no extra system
    call.

    Args:
        root: The folder that links must stay in. It may be a link itself.
        follow: Whether links may lead anywhere; default False. Below a URL there are no links.

    Example:
        >>> links = Links(Path("imagenet/val"))
        >>> links.leads_outside(b"imagenet/val/../train")
        True
    """

    def __init__(self, root: Path, *, follow: bool = False) -> None:
        self.follow = follow or is_url(root)
        self._root = root
        self.folder_leads_outside = lru_cache(KEPT_FOLDERS)(self.leads_outside)  # for folders, of which there are few

    def leads_outside(self, path: bytes) -> bool:
        """Return whether a path, with all links resolved, is outside `root`. Always False with `follow`."""
        if self.follow:
            return False
        real = os.path.realpath(path)
        return real != self._top and not real.startswith(os.path.join(self._top, b""))

    def open(self, path: bytes) -> int:
        """Open a regular file; raise OSError if it is not one, and OSError with EXDEV if it is outside `root`."""
        if self.follow:
            return open_regular(path)
        try:
            if not self.folder_leads_outside(os.path.dirname(path)):
                return open_regular(path, FLAGS | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            if not self.leads_outside(path):
                return open_regular(path)
        raise OSError(errno.EXDEV, OUTSIDE, path)

    def check(self, path: bytes) -> None:
        """Raise BuildError if a file that holds many images is outside `root`."""
        if self.leads_outside(path):
            raise BuildError(f"{os.fsdecode(path)}: {OUTSIDE}")

    def walk(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield `root` and every folder below it that is not hidden, with its file names, sorted.

        A folder that several links lead to is yielded once. For a folder outside `root`, only its own file names are
        yielded, not its subfolders.
        """
        seen, todo = set[bytes](), [os.fsencode(self._root)]
        while todo:
            folder = todo.pop()
            real = os.path.realpath(folder)
            if real in seen:
                continue
            seen.add(real)
            try:
                with os.scandir(folder) as listing:
                    items = sorted((item.name, item.is_dir()) for item in listing if not item.name.startswith(b"."))
            except OSError as error:
                raise failure_from(error, folder) from None
            yield folder, [name for name, is_folder in items if not is_folder]
            if not self.folder_leads_outside(folder):
                todo += [os.path.join(folder, name) for name, is_folder in reversed(items) if is_folder]

    @cached_property
    def _top(self) -> bytes:
        return os.path.realpath(os.fsencode(self._root))


def mtime_of(found: os.stat_result) -> int:
    """Return the mtime in ns, clipped to int64, because some file systems store any year."""
    return max(-(2**63), min(found.st_mtime_ns, 2**63 - 1))


def open_listed(path: bytes, size: int, mtime_ns: int, links: Links | None = None) -> int:
    """Open a file; raise BuildError unless it has the size and mtime that were listed."""
    try:
        fd = open_regular(path) if links is None else links.open(path)
        found = os.fstat(fd)
    except OSError as error:
        raise _read_failure(path, error) from None
    if (found.st_size, mtime_of(found)) != (size, mtime_ns):
        disk.close(fd)
        raise BuildError(
            f"{os.fsdecode(path)}: changed since the plan was made (now "
            f"{_describe_version(found.st_size, mtime_of(found))}; then {_describe_version(size, mtime_ns)}); "
            "restore the file, or remove OUT and build again"
        )
    return fd


def _describe_version(size: int, mtime_ns: int) -> str:
    return f"{size} bytes, modified {datetime.fromtimestamp(mtime_ns / 1e9, UTC):%F %T.%f} UTC"


def read_range(fd: int, path: str | bytes, offset: int, size: int) -> bytes:
    """Read `size` bytes from `offset`, fewer only at the end of the file; raise Stopped or BuildError on failure."""
    try:
        data = disk.pread(fd, size, offset)
        while len(data) < size and (more := disk.pread(fd, size - len(data), offset + len(data))):
            data += more
    except OSError as error:
        raise _read_failure(path, error) from None
    return data


def _read_failure(path: str | bytes, error: OSError) -> BuildError | Stopped:
    if error.errno == errno.EXDEV:  # Links.open raised it for a link that leads out of SRC: a rerun would not help
        return BuildError(f"{os.fsdecode(path)}: {error.strerror}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        name = Path(os.fsdecode(path))
        advice = f"{missing_advice(name.parent)}put it back, or remove OUT and build again"
        return BuildError(f"{name}: {error.strerror}, although it was listed before; {advice}")
    return failure_from(error, path)
