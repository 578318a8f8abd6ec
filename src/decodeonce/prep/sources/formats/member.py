"""What tars and zips hold, as their listings give it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from decodeonce.prep.sources.base import MAX_FILE_BYTES

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
    def last(self) -> bytes:
        """The name without folders."""
        return self.name.rpartition(b"/")[2]


def plain_name(name: bytes) -> bytes:
    """A member's name without "/" before it and "./" in it; b"" where it is hidden (".name", "._name" of macOS)."""
    if name[:1] in (b"/", b".") or b"/." in name or b"//" in name:
        name = b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
    return b"" if _HIDDEN.search(name) else name


def size_problem(size: int) -> str:
    """Why a file of this size can be no picture."""
    if size == 0:
        return "empty file"
    return f"{size} bytes, more than any picture has" if size > MAX_FILE_BYTES else ""


def in_order(members: Iterable[Member], archive: str) -> list[Member]:
    """Members as a walk of the unpacked tree meets them; of equal names the last counts, as when unpacking."""
    found = sorted(members, key=lambda member: member.name.split(b"/"))
    twice = f"twice in the {archive}: the later one counts"
    earlier = [this._replace(problem=twice) if this.name == next_.name else this for this, next_ in pairwise(found)]
    return [*earlier, *found[-1:]]
