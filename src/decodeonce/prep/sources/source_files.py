"""The numbered files of a source that hold many samples each, such as tars.

They are opened when needed, and checked against the plan.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from decodeonce.prep.entry import Entry, Value, name_bytes
from decodeonce.prep.sources.files import system_of
from decodeonce.prep.sources.holders import Holder, Member, read_exactly
from decodeonce.prep.sources.safe_open import Links
from decodeonce.remote import as_path

OPEN_FILES = 64


class SourceFile(NamedTuple):
    """A file at `name` below a source's root, or the root itself if `name` is "", as it was when it was listed.

    Attributes:
        name: Path below the root.
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds; of an object behind a URL, its version.

    Example:
        >>> file = source_file(Path("shards"), "shard-000000.tar")
        >>> file.name
        'shard-000000.tar'
    """

    name: str
    size: int
    mtime_ns: int


def file_path(root: Path, name: str) -> bytes:
    """Return the path of the file `name` below `root`, or `root` itself if `name` is ""."""
    return os.path.join(os.fsencode(root), name_bytes(name)) if name else os.fsencode(root)


def source_file(root: Path, name: str, links: Links | None = None) -> SourceFile:
    """Return the file `name` below `root` as it is now; raise BuildError if it is missing or a forbidden link.

    Args:
        root: Folder that `name` is relative to.
        name: Path of the file; "" for `root` itself.
        links: Which links may be followed; default None allows all.

    Example:
        >>> file = source_file(Path("shards"), "shard-000000.tar")
        >>> file.size == Path("shards/shard-000000.tar").stat().st_size
        True
    """
    return SourceFile(name, *system_of(root).version(file_path(root, name), links))


FileFacts = tuple[str, int, int]  # a SourceFile, or what JSON makes of it, a list


class SourceFiles:
    """The numbered files of a source. Reading raises BuildError if a file is missing or has changed.

    Only some files stay open at a time. `read` must not be used by several threads, except below a URL.

    Args:
        root: Folder that names are relative to.
        files: A `SourceFile` for each file, or what `facts` returned.

    Example:
        >>> root = Path("shards")
        >>> files = SourceFiles(root, [source_file(root, "shard-000000.tar")])
        >>> len(files.read(0, offset=0, size=512))
        512
    """

    def __init__(self, root: Path, files: Iterable[FileFacts]) -> None:
        self.root, self._system = root, system_of(root)
        self.files = [SourceFile(*file) for file in files]
        self._open: OrderedDict[int, Holder] = OrderedDict()

    def facts(self) -> list[list[str | int]]:
        """Return the files as lists, for JSON."""
        return [list(file) for file in self.files]

    def describe(self, what: str) -> str:
        """Return the number of files as text, with the name if there is only one."""
        return f"{len(self.files)} {what}s" if len(self.files) > 1 else f"1 {what} ({self.files[0].name})"

    def path(self, number: int) -> bytes:
        """Return the path of a file."""
        return file_path(self.root, self.files[number].name)

    @property
    def first(self) -> Path:
        """The path of the first file."""
        return as_path(os.fsdecode(self.path(0)))

    def entry(self, number: int, member: Member, label: int = 0, values: Sequence[Value] = ()) -> Entry:
        """Return the entry of a member of a file. Its name is <file>/<member>."""
        file, _, mtime_ns = self.files[number]
        name = b"/".join(filter(None, (name_bytes(file), member.name)))
        return Entry(name, label, member.size, mtime_ns, member.problem, number, member.place, values=tuple(values))

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Read exactly `size` bytes from `offset`."""
        return read_exactly(self.holder(number), offset, size)

    def holder(self, number: int) -> Holder:
        """Return an open file, checked against the listing when it was opened. Do not close it."""
        if self._system.reads_ahead:
            return self._opened(number)  # which opens nothing
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        holder = self._opened(number)
        if len(self._open) == OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        self._open[number] = holder
        return holder

    @contextmanager
    def opened(self, number: int) -> Iterator[Holder]:
        """Open a file with a descriptor of its own, for a listing in a thread."""
        holder = self._opened(number, listing=True)
        try:
            yield holder
        finally:
            holder.close()

    def _opened(self, number: int, *, listing: bool = False) -> Holder:
        _, size, mtime_ns = self.files[number]
        return self._system.holder(self.path(number), size, mtime_ns, listing=listing)

    def close(self) -> None:
        """Close all files. Reading opens them again."""
        while self._open:
            self._open.popitem()[1].close()
