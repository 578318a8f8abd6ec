"""Members of tars and zips, and limits on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from decodeonce.errors import BuildError

MAX_NAME_BYTES = 1 << 16  # the longest name that a zip can store; file systems allow at most 4096
MAX_MEMBERS = 1 << 23  # per archive: a listing holds 400 bytes for each, 700 for a zip's; Kaggle's zip has 2 million
MAX_NAMES_BYTES = 1 << 30  # of all names of an archive: a listing holds them too
# A tar program that does not know pax headers writes them to files in PaxHeaders.1234/.
_HIDDEN = re.compile(rb"(?:^|/)(?:\.(?!\.(?:/|$))|PaxHeaders?(?:\.\d+)?/)")


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
        name: Its path, without a leading "./".
        place: In a tar, the offset of the file's first byte. In a zip, the offset of its local header.
        size: Its unpacked size in bytes.
        problem: Why it cannot become a row; default "": it can.
    """

    name: bytes
    place: int
    size: int
    problem: str = ""

    @property
    def base_name(self) -> bytes:
        return self.name.rpartition(b"/")[2]


class MemberLimits:
    """Counts the members of an archive and the bytes of their names, because a listing holds them in memory."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._members = self._bytes = 0

    def add(self, name: bytes) -> None:
        """Count a member; raise BuildError if a limit is exceeded."""
        self._members += 1
        self._bytes += len(name)
        if len(name) > MAX_NAME_BYTES:
            raise BuildError(
                f"{self._path}: a name has {len(name)} bytes, expected at most {MAX_NAME_BYTES}; shorten it"
            )
        if self._members > MAX_MEMBERS or self._bytes > MAX_NAMES_BYTES:
            raise BuildError(
                f"{self._path}: more than {MAX_MEMBERS} members, or {MAX_NAMES_BYTES} bytes of names; split the archive"
            )


def clean_name(name: bytes) -> bytes:
    """Return a name without leading "/" and without "./"; b"" if it is hidden (".name", or "._name" of macOS)."""
    if name[:1] in (b"/", b".") or b"/." in name or b"//" in name:
        name = b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
    return b"" if _HIDDEN.search(name) else name


def sort_members(members: Iterable[Member], archive: str) -> list[Member]:
    """Sort members like a walk of the unpacked tree. All but the last member of the same name get a problem."""
    found = sorted(members, key=lambda member: member.name.split(b"/"))
    twice = f"twice in the {archive}: the later one counts"
    earlier = [this._replace(problem=twice) if this.name == next_.name else this for this, next_ in pairwise(found)]
    return [*earlier, *found[-1:]]
