"""What tars and zips hold, as their listings give it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from decodeonce.errors import BuildError

MAX_NAME_BYTES = 1 << 16  # as long as a zip's can be; no file system has names of more than 4096
MAX_MEMBERS = 1 << 23  # of one archive: a listing holds 400 bytes of each, of a zip's 700; Kaggle's has 2 million
MAX_NAMES_BYTES = 1 << 30  # of all names of one archive, which are held, too
# PaxHeaders.1234 is where a tar program that does not know pax headers puts them.
_HIDDEN = re.compile(rb"(?:^|/)(?:\.(?!\.(?:/|$))|PaxHeaders?(?:\.\d+)?/)")


class Member(NamedTuple):
    """A file in an archive: `name` without "./" before it, where it lies, and why it can be no row ("" if it can).

    `place` is the byte of a tar at which the file's own bytes begin, of a zip that at which its local header does.
    """

    name: bytes
    place: int
    size: int
    problem: str = ""

    @property
    def base_name(self) -> bytes:
        """The name without folders."""
        return self.name.rpartition(b"/")[2]


class MemberLimits:
    """Counts the members of the archive `path` and the bytes of their names, for a listing holds them."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._members = self._bytes = 0

    def add(self, name: bytes) -> None:
        """Count a member; BuildError where it is one too many, or its name is too long."""
        self._members += 1
        self._bytes += len(name)
        if len(name) > MAX_NAME_BYTES:
            raise BuildError(f"{self._path}: a name of {len(name)} bytes, expected at most {MAX_NAME_BYTES}; mend it")
        if self._members > MAX_MEMBERS or self._bytes > MAX_NAMES_BYTES:
            raise BuildError(
                f"{self._path}: more than {MAX_MEMBERS} members, or {MAX_NAMES_BYTES} bytes of names; pack it in parts"
            )


def clean_name(name: bytes) -> bytes:
    """A member's name without "/" before it and "./" in it; b"" where it is hidden (".name", "._name" of macOS)."""
    if name[:1] in (b"/", b".") or b"/." in name or b"//" in name:
        name = b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
    return b"" if _HIDDEN.search(name) else name


def sort_members(members: Iterable[Member], archive: str) -> list[Member]:
    """Members as a walk of the unpacked tree meets them; of equal names the last counts, as when unpacking."""
    found = sorted(members, key=lambda member: member.name.split(b"/"))
    twice = f"twice in the {archive}: the later one counts"
    earlier = [this._replace(problem=twice) if this.name == next_.name else this for this, next_ in pairwise(found)]
    return [*earlier, *found[-1:]]
