"""Files that hold many samples each (tars, zips): opened when needed, and held to what the plan saw."""

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
    """A file below a source's root ("" is the root itself), as it was when it was listed."""

    name: str
    size: int
    mtime_ns: int


def file_path(root: Path, name: str) -> bytes:
    """The path of the file `name` below `root`; "" is the root itself."""
    return os.path.join(os.fsencode(root), name_bytes(name)) if name else os.fsencode(root)


def source_file(root: Path, name: str, links: Links | None = None) -> SourceFile:
    """The file `name` below `root` as it is now; BuildError where there is none, or a link that `links` forbids."""
    path = file_path(root, name)
    if links is not None:
        links.check(path)
    with expecting(path, "expected a file of pictures"):
        facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise BuildError(f"{os.fsdecode(path)}: not a regular file; expected a file of pictures")
    return SourceFile(name, facts.st_size, mtime_of(facts))


class SourceFiles:
    """The files of a source by number; reading from one raises Stopped where it is gone, changed, or fails."""

    def __init__(self, root: Path, files: Iterable[Any]) -> None:
        self._root = root
        self.files = [SourceFile(*file) for file in files]
        self._fds: OrderedDict[int, int] = OrderedDict()

    def facts(self) -> list[list[Any]]:
        """The files, JSON-ready."""
        return [list(file) for file in self.files]

    def path(self, number: int) -> bytes:
        """Where a file is."""
        return file_path(self._root, self.files[number].name)

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset` of a file."""
        data = self.read_some(number, offset, size)
        if len(data) != size:
            path, end = os.fsdecode(self.path(number)), offset + len(data)
            raise Stopped(f"{path}: ends at byte {end}, expected {offset + size}; run again")
        return data

    def read_some(self, number: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` of a file, fewer only at its end."""
        return read_range(self.fd(number), self.path(number), offset, size)

    def fd(self, number: int) -> int:
        """The descriptor of a file, checked when it was opened; it stays this object's to close."""
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
        """Close what is open; reading opens again."""
        while self._fds:
            disk.close(self._fds.popitem()[1])
