"""What sources, pixels and build exchange: a candidate, its row, and why it can be none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# (left, top, right, bottom) as shares of a picture's width and height, 0 to 1: whoever drew it may have seen the
# picture at another size.
Box = tuple[float, float, float, float]
Value = int | float | list[int] | list[float]  # what a sample has in a column of numbers


class Undecodable(Exception):
    """This content cannot become a row; the text is the reason that rejects.tsv gives."""


class LeftOut(Exception):
    """The user's map wants no row of this picture; the text says so."""


@dataclass(frozen=True)
class Entry:
    """One candidate: `name` is its path relative to SRC as bytes, `problem` why it can be no row ("" if it can).

    `size` is in bytes, of the encoded picture, 0 where it is not known before it is read; `mtime_ns` is that of the
    file it lies in. `unit` and `place` are for the source's own use: which of its files or row groups holds the sample,
    and where in it. `boxes` are parts of the picture; `box_names` are the class names of those kept as columns.
    `values` are what the sample has in each of the source's `column_names`; an entry with a problem may have none.
    """

    name: bytes
    label: int
    size: int
    mtime_ns: int
    problem: str = ""
    unit: int = 0
    place: int = 0
    boxes: tuple[Box, ...] = ()
    box_names: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()

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


@dataclass(frozen=True)
class Row:
    """A picture as a row: its H*W*3 bytes, the source's size in pixels and digest, and its oddity ("" for none).

    `turn` is the EXIF orientation that was applied, 1 for none, `box` what samples.tsv is to say: "" for all of it.
    """

    pixels: bytes
    width: int
    height: int
    oddity: str
    digest: str
    turn: int = 1
    box: str = ""


class RowMaker(Protocol):
    """Turns what a source reads into rows."""

    def row(self, data: bytes, entry: Entry) -> Row:
        """One row; raises Undecodable with the reason, or LeftOut."""
