"""The base class of sources, and helpers that read files safely."""

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
from decodeonce.store.layout import missing_advice
from decodeonce.store.manifest import Column, ImageClass

if TYPE_CHECKING:
    from decodeonce.prep.recipe import Recipe
    from decodeonce.store.table import Reject

WITH_BOXES = "+boxes"  # suffix of `kind` for a source with boxes
MAX_FILE_BYTES = 1 << 30  # an image is read whole; a larger file is probably an archive or a film


class Source(ABC):
    """A kind of input: lists samples once, then reads the encoded bytes of one sample at a time.

    To add a kind, write a subclass and register it in `decodeonce.prep.sources.SOURCES`.

    A build uses a source in three places:

    1. The process that plans the build makes the source, usually with an opener such as `open_folder`. It calls
       `stamp`, `entries`, `classes`, `doubts` and `facts`.
    2. Each worker process makes its own copy with `type(source)(root, **facts)` and calls `read` for its samples, from
       one thread.
    3. The process that finishes the store makes a copy in the same way and calls `columns`, `column_values` and
       `carried_rejects`.

    Only `facts`, `classes`, `entries` and `read` are abstract. The other methods have defaults that suit most sources.

    Every method may raise `BuildError` if the user must change something first, and `Stopped` if the same command may
    succeed later, for example after a file server is back. `read` may also raise `Undecodable`. An `OSError`
    becomes `Stopped` if its cause may pass, such as an absent file server, and `BuildError` otherwise.

    Args:
        root: The folder or file that entry names are relative to.

    Attributes:
        kind: Name of the kind in `SOURCES`, in plans and in store.json.
        read_unit: Name of a unit that holds many samples and can only be read whole, such as "gzip stream" or "row
            group"; default "" if samples can be read one by one. With a read unit, rows keep the source's order unless
            a shuffle seed is given, a seed permutes whole units, and one worker reads all rows of a unit.
        column_names: Names of the columns of numbers; default (). Every entry without a problem has one value for each
            of them in `Entry.values`.

    Example:
        >>> import os
        >>> from decodeonce.prep.sources.base import Source, file_entry, read_file
        >>> from decodeonce.store import ImageClass
        >>> class FlatSource(Source):
        ...     kind = "flat"
        ...
        ...     def facts(self):
        ...         return {}
        ...
        ...     def classes(self):
        ...         return (ImageClass("all"),)
        ...
        ...     def entries(self):
        ...         for name in sorted(os.listdir(os.fsencode(self.root))):
        ...             yield file_entry(self.root, name, label=0)
        ...
        ...     def read(self, entry):
        ...         return read_file(self.root, entry)
    """

    kind: str
    read_unit: str = ""
    column_names: tuple[str, ...] = ()

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def top(self) -> Path:
        """The folder or file that is listed; default `root`. A build refuses to write its store inside it."""
        return self.root

    @property
    def keeps_order(self) -> bool:
        """Whether rows keep the source's order unless a shuffle seed is given. By default, only with a `read_unit`."""
        return bool(self.read_unit)

    @property
    def found(self) -> str:
        """A phrase that describes what was recognised at SRC, shown when a build starts."""
        return f"{self.kind}, {counted(len(self.classes()), 'class', 'classes')}"

    def doubts(self, samples: int) -> list[str]:
        """Return warnings about the listing, one sentence each; default none.

        Called once after `entries` is exhausted. Each sentence is logged after the source's root; the build continues.

        Args:
            samples: Number of entries without a problem that `entries` yielded.
        """
        return []

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the keyword arguments that make this source again from its class and root.

        Called after `entries`, so the result may include what the listing found, such as file sizes. It must be
        JSON-serializable. `type(source)(root, **facts)` must not access any file, because every worker of every task
        calls it.
        """

    def stamp(self) -> Any:
        """Return a value that changes whenever the listing would change; default None if only listing can tell.

        Called before and after `entries`, with the same result, so it must not list the source. It must be
        JSON-serializable. If a plan exists with an equal stamp, that plan is used and the source is not listed again.
        """
        return None

    @abstractmethod
    def classes(self) -> tuple[ImageClass, ...]:
        """Return the classes in label order. The label of an entry is an index into them."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield every sample, in an order that is the same on every call.

        Called for a plan, and again to compare the source with an existing plan or store. Yield lazily: ImageNet has
        1.3 million samples. Also yield a sample that cannot become a row, with the reason in `Entry.problem`; it is
        listed in rejects.tsv. `Entry.name` identifies the sample in samples.tsv. `Entry.unit` and `Entry.place` are for
        the source's own use in `read`.

        Raises:
            BuildError: If the source cannot be used as it is, for example if a folder may not be read.
            Stopped: If the file system fails.
        """

    @abstractmethod
    def read(self, entry: Entry) -> bytes:
        """Return the encoded bytes of one sample, in any order of entries.

        Called in worker processes for entries without a problem. Check that the file has not changed since it was
        listed, as `read_file` and `SourceFiles` do: a store must match its plan.

        Args:
            entry: A sample from `entries`, restored from the plan.

        Raises:
            Stopped: If the file system fails, so that the same command may succeed later.
            BuildError: If the user must act first: the file is missing, has changed since it was listed, or may not
                be read.
            Undecodable: If these bytes alone are damaged. The text is the reason in rejects.tsv.
        """

    def holder(self, entry: Entry) -> bytes:
        """Return the path of the file that holds the sample's bytes; default `root` / `entry.name`.

        Override it if files hold many samples. `prep bench build` uses it.
        """
        return os.path.join(os.fsencode(self.root), entry.name)

    def columns(self) -> list[Column]:
        """Return further columns of the store whose values come from `column_values`; default none."""
        return []

    def column_values(self, column: Column, entries: Sequence[Entry]) -> NDArray[Any]:
        """Return the values of one of `columns` for these samples.

        Returns:
            An array of shape (len(entries), *column.shape) and the column's dtype.
        """
        raise NotImplementedError

    def manifest_facts(self, recipe: dict[str, Any], digest: str) -> dict[str, Any]:
        """Return the keys that store.json gets from the source, at least `recipe` and `source`.

        Args:
            recipe: The recipe of the build, including decoder versions.
            digest: The digest of the listing.
        """
        columns = {"columns": [*self.column_names]} if self.column_names else {}
        return {"recipe": {**recipe, **columns}, "source": {"kind": self.kind, "digest": digest}}

    def carried_rejects(self) -> Iterable[Reject]:
        """Return lines for rejects.tsv that come with the source, such as those of a converted store; default none.

        They do not count as rejects of this build.
        """
        return ()

    def block_rows(self, count: int, row_bytes: int) -> int | None:
        """Return the number of rows per block, or None (the default) to let the build choose."""
        return None

    def row_maker(self, recipe: Recipe) -> RowMaker | None:
        """Return what turns the bytes from `read` into rows, or None (the default) if they are encoded images."""
        return None


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
    """
    path = os.path.join(os.fsencode(root), entry.name)
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
    return f"{size} bytes, modified {datetime.fromtimestamp(mtime_ns / 1e9, timezone.utc):%F %T.%f} UTC"


def read_range(fd: int, path: bytes, offset: int, size: int) -> bytes:
    """Read `size` bytes from `offset`, fewer only at the end of the file; raise Stopped or BuildError on failure."""
    try:
        data = disk.pread(fd, size, offset)
        while len(data) < size and (more := disk.pread(fd, size - len(data), offset + len(data))):
            data += more
    except OSError as error:
        raise _read_failure(path, error) from None
    return data


def _read_failure(path: bytes, error: OSError) -> BuildError | Stopped:
    if error.errno == errno.EXDEV:  # Links.open raised it for a link that leads out of SRC: a rerun would not help
        return BuildError(f"{os.fsdecode(path)}: {error.strerror}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        name = Path(os.fsdecode(path))
        advice = f"{missing_advice(name.parent)}put it back, or remove OUT and build again"
        return BuildError(f"{name}: {error.strerror}, although it was listed before; {advice}")
    return failure_from(error, path)


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
        return Entry(name, label, 0, 0, problem)  # the size and mtime of a folder say nothing about the source
    return Entry(name, label, facts.st_size, mtime_of(facts))


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
    """Return why a file of this size cannot be an image, or "" if it can."""
    if size == 0:
        return "empty file"
    return f"{size} bytes, more than any image has" if size > MAX_FILE_BYTES else ""


def stem_of(name: bytes) -> bytes:
    """Return the name of a file without folders and suffix."""
    return os.path.splitext(os.path.basename(name))[0]


def mode_of(path: bytes) -> int:
    """Return st_mode of a path, following links; 0 if nothing is there. Raise BuildError or Stopped on failure."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        raise_file_system_failure(error, path)
        return 0
