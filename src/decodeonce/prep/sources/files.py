"""Files as sources find, list and read them, on a local file system or behind URLs. Here, a sample is a file.

Local files are opened safely: regular files only, with limits on what is read, and no links that lead out of SRC.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from decodeonce import remote
from decodeonce.errors import BuildError, Stopped, failure_from, raise_file_system_failure
from decodeonce.host import network_file_system
from decodeonce.prep.listing import Entry, name_bytes, name_text
from decodeonce.remote import is_url
from decodeonce.store import disk
from decodeonce.store.layout import missing_advice

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".avif")
SUFFIXES = tuple(map(str.encode, IMAGE_SUFFIXES))
# Folders of systems and tools, and stores. In them are deleted images, thumbnails and copies, but no samples.
NO_SAMPLES = re.compile(
    rb"\..*|__MACOSX|__pycache__|lost\+found|System Volume Information|\$RECYCLE\.BIN|(?-i:RECYCLER)|@eaDir|@Recycle"
    rb"|@__thumb|@Recently-Snapshot|#recycle|#snapshot|~snapshot|.+\.store",
    re.IGNORECASE | re.DOTALL,
)
EMPTY = "empty file"
MAX_FILE_BYTES = 1 << 30  # an image is read whole; a larger file is probably an archive or a film
MAX_DEPTH = 64  # levels below a class folder; a folder deeper than this is rejected
# A stat takes 0.2 to 1 ms on a network file system. At 0.5 ms each, 50,000 files took 35 to 78 s one by one and 4 to
# 9 s with 16 threads. From a local disk's cache they took 1.0 s one by one and 1.8 s with threads, so threads are only
# used on network file systems.
STAT_THREADS = 16
STATS_AT_ONCE = 4096  # entries requested ahead: a few megabytes
Item = TypeVar("Item")
Result = TypeVar("Result")
# O_NONBLOCK: opening a FIFO without a writer would wait forever. It has no effect on regular files.
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
MAX_TEXT_BYTES = 1 << 26  # limit for a file that is read whole; ImageNet's largest, LOC_val_solution.csv, has 2.3 MB
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
OUTSIDE = "a link that leads out of SRC: build with --follow-links"
LFS_POINTER, IS_LFS_POINTER = b"version https://git-lfs", "a Git LFS pointer instead of the file; run: git lfs pull"
KEPT_FOLDERS = 1 << 14  # cached answers for folders: more than ImageNet has classes, a few MB


def open_source_file(path: str | bytes | Path, flags: int = FLAGS) -> int:
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
    """Read a whole regular file; raise OSError if it has more than `most` bytes, or is a Git LFS pointer.

    Args:
        path: Path of the file.
        most: Limit in bytes. Default: 64 MiB.

    Example:
        >>> read_small("val.csv")[:10]
        b'path,label'
    """
    with open(open_source_file(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", path)
    if data.startswith(LFS_POINTER):
        raise OSError(errno.EINVAL, IS_LFS_POINTER, path)
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
            return open_source_file(path)
        try:
            if not self.folder_leads_outside(os.path.dirname(path)):
                return open_source_file(path, FLAGS | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            if not self.leads_outside(path):
                return open_source_file(path)
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
            try:  # os.walk would take an entry for a file if it cannot find out
                with os.scandir(folder) as listing:
                    shown = (item for item in listing if not NO_SAMPLES.fullmatch(item.name))
                    items = sorted((item.name, item.is_dir()) for item in shown)
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
        fd = open_source_file(path) if links is None else links.open(path)
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


class LocalFiles:
    """Local file systems. Below a root, `links` decide which links may be followed; None allows all."""

    def reads_at_once(self, top: Path) -> int:
        """Return how many threads list files below `top`; 1 unless it is on a network file system."""
        return STAT_THREADS if network_file_system(top) else 1

    def list_folder(self, folder: Path) -> list[tuple[str, bool]]:
        """Return the names in a folder, and whether each is a folder; raise OSError if it cannot be listed."""
        with os.scandir(os.fsencode(folder)) as listing:
            return [(name_text(item.name), item.is_dir()) for item in listing]

    def find(self, pattern: str, suffixes: tuple[str, ...], *, deep: bool, follow_links: bool) -> list[str]:
        """Return the paths of the files that a path, a pattern with wildcards, or a folder names, sorted."""
        if os.path.isdir(pattern):
            links = Links(Path(pattern), follow=follow_links)
            folders, ends = links.walk(), tuple(map(os.fsencode, suffixes))
            some = folders if deep else islice(folders, 1)
            every = (os.path.join(top, name) for top, names in some for name in names)
            found = sorted(path for path in every if path.endswith(ends) and stat.S_ISREG(mode_of(path)))
            for path in found:
                links.check(path)
            return list(map(os.fsdecode, found))
        if os.path.exists(pattern):
            return [pattern]
        return sorted(filter(os.path.isfile, glob.glob(pattern)), key=os.fsencode)

    def walk(self, root: Path, folder: str, names: Sequence[str], links: Links) -> Iterator[Entry]:
        """Yield every sample below the folders root/folder/<name>, by folder in the order of `names`, then by name.

        The label of a sample is the index of its folder.
        """
        starts = enumerate(os.path.join(name_bytes(folder), name_bytes(name)) for name in names)
        found = (entry for label, start in starts for entry in _walk(root, start, label, links, set()))
        return stat_entries(root, found, links)

    def entry(self, root: Path, name: bytes, label: int, links: Links | None) -> Entry:
        """Return the entry of a sample, as `file_entry`."""
        path = os.path.join(os.fsencode(root), name)
        if links is not None and links.folder_leads_outside(path.rpartition(b"/")[0]):
            return Entry(name, label, 0, 0, OUTSIDE)
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                if links is not None and links.leads_outside(path):
                    return Entry(name, label, 0, 0, OUTSIDE)
                found = os.stat(path)
        except OSError as error:
            raise_file_system_failure(error, path)
            link = " (a dangling link)" if os.path.islink(path) else ""
            return Entry(name, label, 0, 0, f"{error.strerror}{link}")
        if not stat.S_ISREG(found.st_mode):  # size and mtime of a folder say nothing about the source
            problem = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            return Entry(name, label, 0, 0, problem)
        entry = _sized_entry(name, label, found.st_size, mtime_of(found))
        # access(2) costs a round trip on a network file system. It is not needed if everyone may read the file.
        if not entry.problem and found.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK):
            raise failure_from(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path)
        return entry

    def read(self, root: Path, entry: Entry, links: Links | None) -> bytes:
        """Read a sample, as `read_file`."""
        path = os.path.join(os.fsencode(root), entry.name)
        fd = open_listed(path, entry.size, entry.version, links)
        try:
            data = read_range(fd, path, 0, entry.size + 1)
        finally:
            disk.close(fd)
        if len(data) != entry.size:
            expected = f"expected {entry.size}; run the same command again"
            raise Stopped(f"{os.fsdecode(path)}: {len(data)} bytes could be read, {expected}")
        return data


class RemoteFiles:
    """Objects behind URLs, with the methods of `LocalFiles`. There are no links."""

    def reads_at_once(self, top: Path) -> int:
        return remote.CONNECTIONS

    def list_folder(self, folder: Path) -> list[tuple[str, bool]]:
        return remote.list_folder(str(folder))

    def find(self, pattern: str, suffixes: tuple[str, ...], *, deep: bool, follow_links: bool) -> list[str]:
        return remote.find_objects(pattern, suffixes, deep=deep)

    def walk(self, root: Path, folder: str, names: Sequence[str], links: Links) -> Iterator[Entry]:
        def below(labeled: tuple[int, str]) -> list[Entry]:
            label, top = labeled
            listed = remote.list_objects(str(root / top))
            found = sorted((name_bytes(inner).split(b"/"), version) for inner, version in listed)
            shown = ((parts, version) for parts, version in found if not any(map(NO_SAMPLES.fullmatch, parts)))
            return [_sized_entry(os.path.join(name_bytes(top), *parts), label, *version) for parts, version in shown]

        tops = enumerate(os.path.join(folder, name) for name in names)
        return chain.from_iterable(parallel_map(root, below, tops, remote.CONNECTIONS))

    def entry(self, root: Path, name: bytes, label: int, links: Links | None) -> Entry:
        try:
            return _sized_entry(name, label, *remote.stat_object(os.fsdecode(os.path.join(os.fsencode(root), name))))
        except remote.MissingObject:
            return Entry(name, label, 0, 0, os.strerror(errno.ENOENT))

    def read(self, root: Path, entry: Entry, links: Links | None) -> bytes:
        url = os.fsdecode(os.path.join(os.fsencode(root), entry.name))
        return remote.read_object(url, remote.ObjectFacts(entry.size, entry.version), 0, entry.size)


LOCAL_FILES, REMOTE_FILES = LocalFiles(), RemoteFiles()


def system_of(path: str | Path) -> LocalFiles | RemoteFiles:
    """Return what finds, lists and reads the files at a path or a URL."""
    return REMOTE_FILES if is_url(path) else LOCAL_FILES


def is_file(path: Path) -> bool:
    """Return whether a path or URL is a file that can be found."""
    return path.is_file() if is_url(path) else os.path.isfile(path)


def is_folder(path: Path) -> bool:
    """Return whether a path or URL is a folder that can be found. Raise BuildError or Stopped on failure."""
    return path.is_dir() if is_url(path) else stat.S_ISDIR(mode_of(os.fsencode(path)))


def parallel_map(
    top: Path, function: Callable[[Item], Result], items: Iterable[Item], at_once: int | None = None
) -> Iterator[Result]:
    """Map a function over items in their order, with threads if `top` is a URL or on a network file system.

    Args:
        top: A path on the file system that `function` reads.
        function: The function to call for each item.
        items: The items. Up to `at_once` of them are taken ahead.
        at_once: Items per round of the threads; default `STATS_AT_ONCE`, 4096.
    """
    if (count := system_of(top).reads_at_once(top)) == 1:
        yield from map(function, items)
        return
    left = iter(items)
    with ThreadPoolExecutor(count) as threads:
        while some := list(islice(left, at_once or STATS_AT_ONCE)):
            yield from threads.map(function, some)


def stat_entries(root: Path, listed: Iterable[Entry], links: Links) -> Iterator[Entry]:
    """Yield the entries in their order, with size and mtime of their files below `root`.

    Entries with a problem stay as they are. The folder of the first entry decides whether threads are used.
    """
    entries = iter(listed)
    first = next(entries, None)
    if first is None:
        return
    folder = os.path.dirname(os.path.join(os.fsencode(root), first.name))
    top = Path(os.fsdecode(folder)) if os.path.isdir(folder) else root
    yield from parallel_map(top, partial(_stat_entry, system_of(root), root, links), chain([first], entries))


def _stat_entry(system: LocalFiles | RemoteFiles, root: Path, links: Links, entry: Entry) -> Entry:
    if entry.problem:
        return entry
    found = system.entry(root, entry.name, entry.label, links)
    return replace(found, values=entry.values) if entry.values else found


def _walk(root: Path, folder: bytes, label: int, links: Links, followed: set[bytes], depth: int = 0) -> Iterator[Entry]:
    """Yield the files below a class folder, without size and mtime; none if it is not a folder.

    `followed` has the targets of the links to folders that were followed, because links can form a cycle.
    """
    path = os.path.join(os.fsencode(root), folder)
    if depth == 0 and not stat.S_ISDIR(mode_of(path)):
        return
    walked = depth < MAX_DEPTH and not links.folder_leads_outside(path)
    try:
        with os.scandir(path) as listing:
            items = sorted((item for item in listing if not NO_SAMPLES.fullmatch(item.name)), key=attrgetter("name"))
            found = [(item.name, walked and _to_walk(item, links, followed)) for item in items]
    except OSError as error:
        raise failure_from(error, path) from None
    for name, to_walk in found:
        if to_walk:
            yield from _walk(root, os.path.join(folder, name), label, links, followed, depth + 1)
        else:
            yield Entry(os.path.join(folder, name), label, 0, 0)


def _to_walk(item: os.DirEntry[bytes], links: Links, followed: set[bytes]) -> bool:
    if item.name.lower().endswith(SUFFIXES) or not item.is_dir():
        return False
    if not item.is_symlink():
        return True
    if links.leads_outside(item.path) or (target := os.path.realpath(item.path)) in followed:
        return False
    followed.add(target)
    return True


def file_entry(root: Path, name: bytes, label: int, links: Links | None = None) -> Entry:
    """Return the entry of the file `name` below `root`.

    The entry has a problem if the file is missing, empty, too large or not a regular file, or if it is behind a link
    that leads out of `links`' root.

    Args:
        root: Folder that `name` is relative to.
        name: Path of the file, as bytes.
        label: Class number.
        links: Which links may be followed; default None allows all.

    Raises:
        BuildError: If the file may not be read.
        Stopped: If the file system fails.

    Example:
        >>> entry = file_entry(Path("imagenet/val"), b"n01440764/n01440764_0.JPEG", label=0)
        >>> entry.text, entry.problem
        ('n01440764/n01440764_0.JPEG', '')
        >>> file_entry(Path("imagenet/val"), b"missing.JPEG", label=0).problem
        'No such file or directory'
    """
    return system_of(root).entry(root, name, label, links)


def _sized_entry(name: bytes, label: int, size: int, version: int) -> Entry:
    problem = size_problem(size)
    return Entry(name, label, 0, 0, problem) if problem else Entry(name, label, size, version)


def size_problem(size: int) -> str:
    """Return why a file of this size in bytes cannot be an image, or "" if it can.

    Example:
        >>> size_problem(0), size_problem(1024)
        ('empty file', '')
    """
    if size == 0:
        return EMPTY
    return f"{size} bytes, more than any image has" if size > MAX_FILE_BYTES else ""


def stem_of(name: bytes) -> bytes:
    """Return the name of a file without folders and suffix."""
    return os.path.splitext(os.path.basename(name))[0]


def named_entries(root: Path, names: Iterable[bytes], links: Links) -> Iterator[Entry]:
    """Yield the entries of the regular files that have these names below `root`, with label 0.

    Args:
        root: Folder that names are relative to.
        names: Paths of files, as bytes. Missing files, and names that lead out of `root`, have no entry.
        links: Which links may be followed.

    Example:
        >>> root = Path("imagenet/val")
        >>> entries = named_entries(root, [b"n01440764/n01440764_0.JPEG", b"missing.JPEG"], Links(root))
        >>> [entry.text for entry in entries]
        ['n01440764/n01440764_0.JPEG']
    """
    for name in sorted(names):
        inside = not name.startswith(b"/") and b".." not in name.split(b"/") and b"\0" not in name
        if inside and (is_url(root) or stat.S_ISREG(mode_of(os.path.join(os.fsencode(root), name)))):
            yield file_entry(root, name, 0, links)


def mode_of(path: bytes) -> int:
    """Return st_mode of a path, following links; 0 if nothing is there. Raise BuildError or Stopped on failure."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        raise_file_system_failure(error, path)
        return 0


def read_file(root: Path, entry: Entry, links: Links | None = None) -> bytes:
    """Read the file `entry.name` below `root`, after checking that it is still the listed one.

    Args:
        root: Folder that `entry.name` is relative to.
        entry: The sample; its `size` in bytes and `version` must still be those of the file.
        links: Which links may be followed; default None allows all.

    Raises:
        Stopped: If the file system fails.
        BuildError: If the file is missing, has changed since it was listed, may not be read, or is a link that `links`
            forbids.

    Example:
        >>> root = Path("imagenet/val")
        >>> entry = file_entry(root, b"n01440764/n01440764_0.JPEG", label=0)
        >>> len(read_file(root, entry)) == entry.size
        True
    """
    return system_of(root).read(root, entry, links)
