"""Samples that are files of their own: list them with size and mtime, and read them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from decodeonce.errors import BuildError, Stopped, failure_from, raise_file_system_failure
from decodeonce.host import network_file_system
from decodeonce.prep.entry import Entry, name_bytes
from decodeonce.prep.sources.safe_open import OUTSIDE, Links, open_regular
from decodeonce.remote import (
    CONNECTIONS,
    MissingObject,
    ObjectFacts,
    is_url,
    list_objects,
    read_object,
    stat_object,
)
from decodeonce.store import disk
from decodeonce.store.layout import missing_advice

MAX_FILE_BYTES = 1 << 30  # an image is read whole; a larger file is probably an archive or a film
# A stat takes 0.2 to 1 ms on a network file system. At 0.5 ms each, 50,000 files took 35 to 78 s one by one and 4 to
# 9 s with 16 threads. From a local disk's cache they took 1.0 s one by one and 1.8 s with threads, so threads are only
# used on network file systems.
STAT_THREADS = 16
STATS_AT_ONCE = 4096  # entries requested ahead: a few megabytes
Item = TypeVar("Item")
Result = TypeVar("Result")


def reads_at_once(top: Path) -> int:
    """Return how many threads read below `top`; 1 unless it is on a network file system."""
    return CONNECTIONS if is_url(top) else STAT_THREADS if network_file_system(top) else 1


def parallel_map(
    top: Path, function: Callable[[Item], Result], items: Iterable[Item], at_once: int | None = None
) -> Iterator[Result]:
    """Map a function over items in their order, with threads if `top` is on a network file system.

    Args:
        top: A path on the file system that `function` reads.
        function: The function to call for each item.
        items: The items. Up to `at_once` of them are taken ahead.
        at_once: Items per round of the threads; default `STATS_AT_ONCE`, 4096.
    """
    if (count := reads_at_once(top)) == 1:
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
    yield from parallel_map(top, partial(_stat_entry, root, links), chain([first], entries))


def _stat_entry(root: Path, links: Links, entry: Entry) -> Entry:
    if entry.problem:
        return entry
    found = file_entry(root, entry.name, entry.label, links)
    return replace(found, values=entry.values) if entry.values else found


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
    path = os.path.join(os.fsencode(root), name)
    if is_url(root):
        try:
            return _object_entry(name, label, stat_object(os.fsdecode(path)))
        except MissingObject:
            return Entry(name, label, 0, 0, os.strerror(errno.ENOENT))
    if links is not None and links.folder_leads_outside(path.rpartition(b"/")[0]):
        return Entry(name, label, 0, 0, OUTSIDE)
    try:
        facts = os.lstat(path)
        if stat.S_ISLNK(facts.st_mode):
            if links is not None and links.leads_outside(path):
                return Entry(name, label, 0, 0, OUTSIDE)
            facts = os.stat(path)
    except OSError as error:
        raise_file_system_failure(error, path)
        link = " (a dangling link)" if os.path.islink(path) else ""
        return Entry(name, label, 0, 0, f"{error.strerror}{link}")
    if problem := _problem(path, facts):
        return Entry(name, label, 0, 0, problem)  # the size and mtime of a folder say nothing about the source
    return Entry(name, label, facts.st_size, mtime_of(facts))


def _object_entry(name: bytes, label: int, facts: ObjectFacts) -> Entry:
    problem = size_problem(facts.size)
    return Entry(name, label, 0, 0, problem) if problem else Entry(name, label, *facts)


def object_entries(root: Path, labelled: tuple[int, str]) -> list[Entry]:
    """Return the entries of the objects below a folder of a URL, in the order of a walk, except hidden ones.

    Args:
        root: The URL that the entries' names are relative to.
        labelled: The label of the entries, and the path of the folder below `root`.
    """
    label, folder = labelled
    found = sorted((name_bytes(inner).split(b"/"), facts) for inner, facts in list_objects(str(root / folder)))
    shown = ((parts, facts) for parts, facts in found if not any(part.startswith(b".") for part in parts))
    return [_object_entry(os.path.join(name_bytes(folder), *parts), label, facts) for parts, facts in shown]


def _problem(path: bytes, facts: os.stat_result) -> str:
    if stat.S_ISDIR(facts.st_mode):
        return "a directory"
    if not stat.S_ISREG(facts.st_mode):
        return "not a regular file"
    # access(2) costs a round trip on a network file system. It is not needed if everyone may read the file.
    problem = size_problem(facts.st_size)
    if not problem and facts.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK):
        raise failure_from(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path)
    return problem


def size_problem(size: int) -> str:
    """Return why a file of this size in bytes cannot be an image, or "" if it can.

    Example:
        >>> size_problem(0), size_problem(1024)
        ('empty file', '')
    """
    if size == 0:
        return "empty file"
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


def is_file(path: Path) -> bool:
    """Return whether a path or a URL is a file that can be found."""
    return path.is_file() if is_url(path) else os.path.isfile(path)


def is_folder(path: Path) -> bool:
    """Return whether a path or a URL is a folder that can be found. Raise BuildError or Stopped on failure."""
    return path.is_dir() if is_url(path) else stat.S_ISDIR(mode_of(os.fsencode(path)))


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
        entry: The sample; its `size` in bytes and `mtime_ns` must still be those of the file.
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
    path = os.path.join(os.fsencode(root), entry.name)
    if is_url(root):
        return read_object(os.fsdecode(path), ObjectFacts(entry.size, entry.mtime_ns), 0, entry.size)
    fd = open_listed(path, entry.size, entry.mtime_ns, links)
    try:
        data = read_range(fd, path, 0, entry.size + 1)
    finally:
        disk.close(fd)
    if len(data) != entry.size:
        raise Stopped(
            f"{os.fsdecode(path)}: {len(data)} bytes could be read, expected {entry.size}; run the same command again"
        )
    return data


def mtime_of(facts: os.stat_result) -> int:
    """Return the mtime in ns, clipped to int64, because some file systems store any year."""
    return max(-(2**63), min(facts.st_mtime_ns, 2**63 - 1))


def open_listed(path: bytes, size: int, mtime_ns: int, links: Links | None = None) -> int:
    """Open a file; raise BuildError unless it has the size and mtime that were listed."""
    try:
        fd = open_regular(path) if links is None else links.open(path)
        facts = os.fstat(fd)
    except OSError as error:
        raise _read_failure(path, error) from None
    if (facts.st_size, mtime_of(facts)) != (size, mtime_ns):
        disk.close(fd)
        raise BuildError(
            f"{os.fsdecode(path)}: changed since the plan was made (now "
            f"{_describe_version(facts.st_size, mtime_of(facts))}; then {_describe_version(size, mtime_ns)}); "
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
