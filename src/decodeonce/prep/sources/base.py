"""What every source is: a listing made once, and the bytes of one sample."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from decodeonce.errors import PASSING_ERRORS, Stopped, failure_from
from decodeonce.store.manifest import PictureClass

MAX_FILE_BYTES = 1 << 30  # a picture is read whole; this is somebody's archive or film


@dataclass(frozen=True)
class Entry:
    """One candidate: `name` is its path relative to SRC as bytes, `problem` why it can be no row ("" if it can)."""

    name: bytes
    label: int
    size: int
    mtime_ns: int
    problem: str = ""

    @property
    def text(self) -> str:
        """The name as tables write it, the same in every locale."""
        return name_text(self.name)


def name_bytes(text: str) -> bytes:
    """The inverse of `name_text`."""
    return text.encode("utf-8", "surrogateescape")


def name_text(name: bytes) -> str:
    """A file name as text: UTF-8, other bytes as lone surrogates (os.fsdecode would follow the locale)."""
    return name.decode("utf-8", "surrogateescape")


class Source(Protocol):
    """A kind of input; a new one is a module with this and a line in `decodeonce.prep.sources.SOURCES`."""

    kind: str
    root: Path
    top: Path  # the part of root that is listed

    @property
    def keeps_order(self) -> bool:
        """Whether rows follow the source's order unless a shuffle seed is given: True for val."""

    def facts(self) -> dict[str, Any]:
        """What makes this source again from its kind and root: the keyword arguments of its class, JSON-ready."""

    def classes(self) -> tuple[PictureClass, ...]:
        """The classes in label order."""

    def entries(self) -> Iterator[Entry]:
        """Every candidate in the source's own, reproducible order, without holding them all."""

    def read(self, entry: Entry) -> bytes:
        """The encoded bytes of one candidate; raises Stopped where the file is gone or not as it was listed."""


def read_file(root: Path, entry: Entry) -> bytes:
    """The bytes of the file `entry.name` below `root`, if size and mtime are still those of the listing.

    Raises Stopped (the sample is named) where the file vanished, changed, may not be read or the file system fails.
    """
    path = os.path.join(os.fsencode(root), entry.name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            facts = os.fstat(fd)
            if (facts.st_size, facts.st_mtime_ns) != (entry.size, entry.mtime_ns):
                raise Stopped(
                    f"{os.fsdecode(path)}: changed since the plan ({facts.st_size} bytes, expected {entry.size}, or "
                    "another mtime); put it back, or remove OUT and build again"
                )
            data = os.read(fd, entry.size + 1)
            while len(data) < entry.size and (more := os.read(fd, entry.size - len(data))):
                data += more
        finally:
            os.close(fd)
    except OSError as error:
        raise Stopped(
            f"{os.fsdecode(path)}: {error.strerror}; make it readable and run the same command again"
        ) from None
    if len(data) != entry.size:
        raise Stopped(f"{os.fsdecode(path)}: {len(data)} bytes could be read, expected {entry.size}; run again")
    return data


def file_entry(root: Path, name: bytes, label: int) -> Entry:
    """The entry of the file `name` below `root`, with its problem where it is missing, forbidden or no regular file."""
    path = os.path.join(os.fsencode(root), name)
    try:
        facts = os.stat(path)
    except OSError as error:
        if error.errno in PASSING_ERRORS:
            raise failure_from(error, os.fsdecode(path)) from None
        link = " (a dangling link)" if os.path.islink(path) else ""
        return Entry(name, label, 0, 0, f"{error.strerror}{link}")
    if problem := _problem(path, facts):
        return Entry(name, label, 0, 0, problem)  # a folder's size and mtime are the file system's, not the source's
    return Entry(name, label, facts.st_size, facts.st_mtime_ns)


def _problem(path: bytes, facts: os.stat_result) -> str:
    if stat.S_ISDIR(facts.st_mode):
        return "a directory"
    if not stat.S_ISREG(facts.st_mode):
        return "not a regular file"
    if facts.st_size == 0:
        return "empty file"
    if facts.st_size > MAX_FILE_BYTES:
        return f"{facts.st_size} bytes, more than any picture has"
    # access(2) costs a round trip on a network file system; who may read is plain where everyone may
    if facts.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK):
        return "permission denied"
    return ""
