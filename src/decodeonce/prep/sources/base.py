"""What every source is: a listing made once, and the bytes of one sample."""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from decodeonce.errors import (
    PERMISSION_ERRORS,
    TRANSIENT_ERRORS,
    BuildError,
    Stopped,
    failure_from,
    raise_file_system_failure,
)
from decodeonce.formatting import counted
from decodeonce.prep.entry import Entry, RowMaker
from decodeonce.prep.sources.links import OUTSIDE, Links
from decodeonce.prep.sources.safe_open import open_regular
from decodeonce.store import disk
from decodeonce.store.manifest import Column, ImageClass

if TYPE_CHECKING:
    from decodeonce.prep.recipe import Recipe
    from decodeonce.store.table import Reject

WITH_BOXES = "+boxes"  # ends the kind of a source whose entries were given boxes
MAX_FILE_BYTES = 1 << 30  # a picture is read whole; this is somebody's archive or film


class Source(ABC):
    """A kind of input; a new one is a module with a subclass and a line in `decodeonce.prep.sources.SOURCES`."""

    kind: str
    # What holds many samples and can only be read whole ("gzip stream", "row group"): rows then follow the source's
    # order unless a seed is given, a seed permutes whole units, and a unit's rows are left to one worker.
    read_unit: str = ""
    # Columns of numbers of which every entry has a value.
    column_names: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def top(self) -> Path:
        """The part of root that is listed. No store is built into it."""
        return self.root

    @property
    def keeps_order(self) -> bool:
        """Whether rows follow the source's order unless a shuffle seed is given."""
        return bool(self.read_unit)

    @property
    def found(self) -> str:
        """What was recognised at SRC, in a phrase for people."""
        return f"{self.kind}, {counted(len(self.classes()), 'class', 'classes')}"

    def doubts(self, samples: int) -> list[str]:
        """What is wrong or missing though a build is possible, a sentence each; `samples` is what entries() gave."""
        return []

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What makes this source again from its kind and root: the keyword arguments of its class, JSON-ready.

        Asked for after entries(): what the listing found (files, offsets of parts) may be in it. Making a source from
        facts touches no file, for every worker of every task does it.
        """

    def stamp(self) -> Any:
        """What is another whenever entries() would be, known without it, JSON-ready; None where only listing tells.

        A plan with the same stamp is gone on with, and nothing is listed again.
        """
        return None

    @abstractmethod
    def classes(self) -> tuple[ImageClass, ...]:
        """The classes in label order."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Every candidate in the source's own, reproducible order, without holding them all."""

    @abstractmethod
    def read(self, entry: Entry) -> bytes:
        """The encoded bytes of one candidate.

        Raises Stopped where the file is gone or not as it was listed, Undecodable where these bytes alone are damaged.
        """

    def holder(self, entry: Entry) -> bytes:
        """The path of the file in which the bytes of one candidate lie."""
        return os.path.join(os.fsencode(self.root), entry.name)

    def columns(self) -> list[Column]:
        """What every sample has beside pixels and label, to be kept as columns of the store."""
        return []

    def column_values(self, column: Column, entries: Sequence[Entry]) -> NDArray[Any]:
        """(len(entries), *column.shape) of the column's dtype: what these samples have."""
        raise NotImplementedError

    def manifest_facts(self, recipe: dict[str, Any], digest: str) -> dict[str, Any]:
        """What store.json says of `recipe` and `source`, given those of the build and the digest of the listing."""
        columns = {"columns": [*self.column_names]} if self.column_names else {}
        return {"recipe": {**recipe, **columns}, "source": {"kind": self.kind, "digest": digest}}

    def carried_rejects(self) -> Iterable[Reject]:
        """Lines for rejects.tsv of what is none of the entries, or was odd before: no rejects of this build."""
        return ()

    def block_rows(self, count: int, row_bytes: int) -> int | None:
        """How many rows a block is to have, where that is not left to the build."""
        return None

    def row_maker(self, recipe: Recipe) -> RowMaker | None:
        """What makes rows of the bytes that read() gives, where they are no encoded picture."""
        return None


def read_file(root: Path, entry: Entry, links: Links | None = None) -> bytes:
    """The bytes of the file `entry.name` below `root`, if size and mtime are still those of the listing.

    Raises Stopped (the sample is named) where the file vanished, changed or the file system fails, BuildError where it
    may not be read, or is a link to what `links` does not allow.
    """
    path = os.path.join(os.fsencode(root), entry.name)
    fd = open_listed(path, entry.size, entry.mtime_ns, links)
    try:
        data = read_range(fd, path, 0, entry.size + 1)
    finally:
        disk.close(fd)
    if len(data) != entry.size:
        raise Stopped(f"{os.fsdecode(path)}: {len(data)} bytes could be read, expected {entry.size}; run again")
    return data


def mtime_of(facts: os.stat_result) -> int:
    """When a file was written, in ns since 1970, as 64 bits hold it; some file systems keep any year."""
    return max(-(2**63), min(facts.st_mtime_ns, 2**63 - 1))


def open_listed(path: bytes, size: int, mtime_ns: int, links: Links | None = None) -> int:
    """A descriptor of the file that was listed with this size and mtime; raises Stopped where it is another now."""
    try:
        fd = open_regular(path) if links is None else links.open(path)
        facts = os.fstat(fd)
    except OSError as error:
        raise _read_failure(path, error) from None
    if (facts.st_size, mtime_of(facts)) != (size, mtime_ns):
        disk.close(fd)
        raise Stopped(
            f"{os.fsdecode(path)}: changed since the plan ({_describe_version(facts.st_size, mtime_of(facts))}, "
            f"{_describe_version(size, mtime_ns)} in the plan); put it back, or remove OUT and build again"
        )
    return fd


def _describe_version(size: int, mtime_ns: int) -> str:
    return f"{size} bytes of {datetime.fromtimestamp(mtime_ns / 1e9, timezone.utc):%F %T.%f} UTC"


def read_range(fd: int, path: bytes, offset: int, size: int) -> bytes:
    """Up to `size` bytes from `offset`, fewer only at the end of the file; raises Stopped where reading fails."""
    try:
        data = disk.pread(fd, size, offset)
        while len(data) < size and (more := disk.pread(fd, size - len(data), offset + len(data))):
            data += more
    except OSError as error:
        raise _read_failure(path, error) from None
    return data


def _read_failure(path: bytes, error: OSError) -> BuildError | Stopped:
    if error.errno == errno.EXDEV:  # a link that leads out of SRC, of which Links.open says so: no rerun will help
        return BuildError(f"{os.fsdecode(path)}: {error.strerror}")
    if error.errno in TRANSIENT_ERRORS | PERMISSION_ERRORS:
        return failure_from(error, path)
    return Stopped(f"{os.fsdecode(path)}: {error.strerror}; make it readable and run the same command again")


def file_entry(root: Path, name: bytes, label: int, links: Links | None = None) -> Entry:
    """The entry of the file `name` below `root`, with its problem where it is missing or no regular file.

    Or where it is, or lies behind, a link that leads out; without `links` they may lead anywhere. Raises BuildError
    where it may not be read, Stopped where the file system fails.
    """
    path = os.path.join(os.fsencode(root), name)
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
        return Entry(name, label, 0, 0, problem)  # a folder's size and mtime are the file system's, not the source's
    return Entry(name, label, facts.st_size, mtime_of(facts))


def _problem(path: bytes, facts: os.stat_result) -> str:
    if stat.S_ISDIR(facts.st_mode):
        return "a directory"
    if not stat.S_ISREG(facts.st_mode):
        return "not a regular file"
    # access(2) costs a round trip on a network file system; who may read is plain where everyone may
    problem = size_problem(facts.st_size)
    if not problem and facts.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK):
        raise failure_from(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path)
    return problem


def size_problem(size: int) -> str:
    """Why a file of this size can be no picture."""
    if size == 0:
        return "empty file"
    return f"{size} bytes, more than any picture has" if size > MAX_FILE_BYTES else ""


def stem_of(name: bytes) -> bytes:
    """A file's name without folders and suffix."""
    return os.path.splitext(os.path.basename(name))[0]


def mode_of(path: bytes) -> int:
    """The st_mode of what a path leads to, 0 for nothing; raises BuildError or Stopped if that cannot be seen."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        raise_file_system_failure(error, path)
        return 0
