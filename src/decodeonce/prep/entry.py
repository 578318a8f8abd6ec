"""Types that sources, pixels and build exchange: a listed sample, its row, and the reasons to have no row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

# (left, top, right, bottom) as fractions of the image's width and height, 0 to 1. Annotations may have been made at
# another image size, so pixels would not do.
Box = tuple[float, float, float, float]
PixelBox = tuple[int, int, int, int]  # the same in pixels; right and bottom are exclusive
WHOLE = [math.nan] * 4
Value = int | float | list[int] | list[float]  # a sample's value in a numeric column


class Undecodable(Exception):
    """The content cannot become a row; the text is the reason written to rejects.tsv.

    Example:
        >>> class JpegFolder(FolderSource):
        ...     def read(self, entry):
        ...         [data] = super().read(entry)
        ...         if data[:2] != bytes([0xFF, 0xD8]):
        ...             raise Undecodable("not a JPEG")
        ...         return [data]
        >>> source = JpegFolder(Path("imagenet/val"))
        >>> len(source.read(next(iter(source.scan().entries))))
        1
    """


class LeftOut(Exception):
    """The user's map left this image out; the text says which map."""


@dataclass(frozen=True)
class Entry:
    """One sample as a source lists it.

    Args:
        name: Path relative to SRC, as bytes.
        label: Class index.
        size: Bytes of the encoded image; 0 if unknown until it is read.
        version: A number that changes with the content: the modification time in nanoseconds of the file that holds
            the image, or a hash.
        problem: Why the sample cannot become a row; "" if it can.
        unit: For the source's own use: the index of the file or row group that holds the sample.
        place: For the source's own use: the position of the sample within `unit`.
        values: One value per name in the source's `column_names`; may be empty if there is a problem.
        planned: Further lists of numbers by name, with the same names and lengths for every entry without a problem,
            which the plan keeps. "box" is the part of the image that becomes the row. "paired NAME" says where a mask
            or second image is; the second number is its size in bytes.
        digested: What the digest of the listing covers instead of `planned`, besides the sizes of masks.

    Example:
        >>> entry = Entry(b"cat/1.jpg", label=0, size=1024, version=0)
        >>> entry.text, entry.problem
        ('cat/1.jpg', '')
    """

    name: bytes
    label: int
    size: int
    version: int
    problem: str = ""
    unit: int = 0
    place: int = 0
    values: tuple[Value, ...] = ()
    planned: Mapping[str, list[float]] = field(default_factory=dict)
    digested: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The name as the .tsv files write it, the same in every locale."""
        return name_text(self.name)

    @property
    def box(self) -> Box | None:
        """The part of the image that becomes the row; None, planned as NaN, for the whole image."""
        left, top, right, bottom = self.planned.get("box", WHOLE)
        return None if math.isnan(left) else (left, top, right, bottom)


def name_bytes(text: str) -> bytes:
    """Encode a name decoded by `name_text`."""
    return text.encode("utf-8", "surrogateescape")


def name_text(name: bytes) -> str:
    """Decode a file name as UTF-8, other bytes as lone surrogates (os.fsdecode would depend on the locale)."""
    return name.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Row:
    """An image as a row, with the facts that the store records about it.

    Args:
        pixels: The packed image, then the bytes of what the recipe pairs with the image.
        width: Width of the source image in pixels.
        height: Height of the source image in pixels.
        unusual: What is unusual about the image, for rejects.tsv; "" for nothing.
        digest: xxh3_64 of the encoded image.
        turn: EXIF orientation that was applied; 1 for none.
        box: Pixel box for samples.tsv; "" for the whole image.
    """

    pixels: bytes
    width: int
    height: int
    unusual: str
    digest: int
    turn: int = 1
    box: str = ""


class RowMaker(Protocol):
    """Turns the bytes that a source reads into rows."""

    def row(self, data: bytes, entry: Entry, *paired: bytes) -> Row:
        """Return the row of one sample, from what `Source.read` returned.

        Raises:
            Undecodable: The sample cannot become a row; the text is the reason.
            LeftOut: The user's map left the sample out.
        """
