"""Files that hold many samples each, such as tars. They are opened when needed and checked against the plan."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.sources.base import mtime_of, open_listed, read_range
from decodeonce.prep.sources.links import Links
from decodeonce.prep.sources.safe_open import expecting
from decodeonce.store import disk

OPEN_FILES = 64


class SourceFile(NamedTuple):
    """A file at `name` below a source's root, or the root itself if `name` is "", as it was when it was listed."""

    name: str
    size: int
    mtime_ns: int


def file_path(root: Path, name: str) -> bytes:
    """Return the path of the file `name` below `root`, or `root` itself if `name` is ""."""
    return os.path.join(os.fsencode(root), name_bytes(name)) if name else os.fsencode(root)


def source_file(root: Path, name: str, links: Links | None = None) -> SourceFile:
    """Return the file `name` below `root` as it is now; raise BuildError if it is missing or a forbidden link."""
    path = file_path(root, name)
    if links is not None:
        links.check(path)
    with expecting(path, "expected a file that holds images"):
        facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise BuildError(f"{os.fsdecode(path)}: not a regular file; expected a file that holds images")
    return SourceFile(name, facts.st_size, mtime_of(facts))


class SourceFiles:
    """The numbered files of a source. Reading raises BuildError if a file is missing or has changed.

    Up to `OPEN_FILES` files stay open. An instance must be used by one thread only.
    """

    def __init__(self, root: Path, files: Iterable[Any]) -> None:
        self._root = root
        self.files = [SourceFile(*file) for file in files]
        self._fds: OrderedDict[int, int] = OrderedDict()

    def facts(self) -> list[list[Any]]:
        """Return the files as lists, for JSON."""
        return [list(file) for file in self.files]

    def path(self, number: int) -> bytes:
        return file_path(self._root, self.files[number].name)

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Read exactly `size` bytes from `offset`."""
        data = self.read_some(number, offset, size)
        if len(data) != size:
            path, end = os.fsdecode(self.path(number)), offset + len(data)
            raise Stopped(f"{path}: ends at byte {end}, expected {offset + size}; run the same command again")
        return data

    def read_some(self, number: int, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end of the file."""
        return read_range(self.fd(number), self.path(number), offset, size)

    def fd(self, number: int) -> int:
        """Return an open descriptor, checked against the listing when it was opened. Do not close it."""
        if number in self._fds:
            self._fds.move_to_end(number)
            return self._fds[number]
        _, size, mtime_ns = self.files[number]
        fd = open_listed(self.path(number), size, mtime_ns)
        if len(self._fds) == OPEN_FILES:
            disk.close(self._fds.popitem(last=False)[1])
        self._fds[number] = fd
        return fd

    def close(self) -> None:
        """Close all descriptors. Reading opens them again."""
        while self._fds:
            disk.close(self._fds.popitem()[1])
