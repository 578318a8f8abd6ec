"""What sources, pixels and building exchange: a listed sample, its row, the reasons to have no row, and listings.

A listing is the samples of a source as arrays, in the order of the source or of the rows of a plan.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.store.columns import column_file
from decodeonce.store.manifest import Column, ImageClass
from decodeonce.store.table import Reject

# (left, top, right, bottom) as fractions of the image's width and height, 0 to 1. Annotations may have been made at
# another image size, so pixels would not do.
Box = tuple[float, float, float, float]
PixelBox = tuple[int, int, int, int]  # the same in pixels; right and bottom are exclusive
WHOLE = [math.nan] * 4
Value = int | float | list[int] | list[float]  # a sample's value in a numeric column
# What is known about a sample of a dataset only after it was read: its `place`, its label as text, and its values of
# columns; None if its label rejects it.
LateFacts = tuple[int, str, list[Value] | None]
FIELDS = ("label", "name_bytes", "name_start", "size", "version", "unit", "place")
RECORD = np.dtype({"names": FIELDS, "formats": ("<i4", "<i4", "<i8", "<i8", "<i8", "<i4", "<i8")})
PACKED = struct.Struct("<iiqqqiq")  # a record of dtype RECORD
CHUNK = 1 << 13
# Listings are compared by hashes of 16 bytes per sample. Python objects would take 700 bytes, 10 GB for 14 million.
HASHES = np.dtype([("name", "<u8"), ("facts", "<u8")])
hash_of = xxhash.xxh3_64_intdigest
MULTI_LABEL = "docs/how-to/data/multi-label.md"
SEGMENTATION = "docs/how-to/segmentation.md"
WHOLE_IN_FLOAT32 = 2**24  # float32 represents every whole number up to here


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


def refuse_masked(what: str, value: object) -> None:
    """Raise Undecodable if a value is a masked array of NumPy with masked parts: only what is below them is stored."""
    if np.ma.is_masked(value):
        raise Undecodable(f"{what} has masked values, which a row cannot have; fill them, for example with .filled(0)")


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
        numbers: Further lists of numbers by name, with the same names and lengths for every entry without a problem,
            which the plan keeps. "box" is the part of the image that becomes the row. "annotated" is the width and
            height of the image that boxes describe, or zeros. "paired NAME" says where a mask or second image is; the
            second number is its size in bytes.
        digested: What the digest of the listing covers instead of `numbers`, besides the sizes of masks.

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
    numbers: Mapping[str, list[float]] = field(default_factory=dict)
    digested: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The name as the .tsv files write it, the same in every locale."""
        return name_text(self.name)

    @property
    def box(self) -> Box | None:
        """The part of the image that becomes the row; None, NaN in the plan, for the whole image."""
        left, top, right, bottom = self.numbers.get("box", WHOLE)
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
        colors: The colors of the palettes of masks, such as "ff0000", by mask and index, such as "mask: index 1".
    """

    pixels: bytes
    width: int
    height: int
    unusual: str
    digest: int
    turn: int = 1
    box: str = ""
    colors: Mapping[str, str] = field(default_factory=dict)


class RowMaker(Protocol):
    """Turns the bytes that a source reads into rows."""

    def row(self, data: bytes, entry: Entry, *paired: bytes) -> Row:
        """Return the row of one sample, from what `Source.read` returned.

        Raises:
            Undecodable: The sample cannot become a row; the text is the reason.
            LeftOut: The user's map left the sample out.
        """


@dataclass
class Scan:
    """A source while it is listed.

    Attributes:
        entries: Every sample, also those that cannot become rows, in an order that is the same in every scan. They can
            be iterated once, and should be made lazily: ImageNet has 1.3 million.
        classes: The classes in label order. All of them are known before the first entry, except that boxes add classes
            until the last one.
        warnings: Called after the last entry with the number of samples that have no problem; returns sentences about
            what was found. Default: no warnings.
        box_classes: The names of the classes of kept boxes, complete after the last entry; default None: no boxes are
            kept.
        finish: For decodeonce's own sources: called with the samples as arrays, and returns them with what can only be
            known then. Default: unchanged.
        late: For decodeonce's own sources: whether labels and values are known only after samples are read. Entries
            then have neither, and `classes` are those that are known before. Default False.

    Example:
        >>> entries = [Entry(b"cat/1.jpg", 0, 1024, 0), Entry(b"cat/2.jpg", 0, 0, 0, "empty file")]
        >>> scan = Scan(entries, [ImageClass("cat")])
        >>> [entry.problem for entry in scan.entries]
        ['', 'empty file']
    """

    entries: Iterable[Entry]
    classes: Sequence[ImageClass]
    warnings: Callable[[int], list[str]] = lambda samples: []
    box_classes: Collection[str] | None = None
    finish: Callable[[Listing], Listing] = lambda listing: listing
    late: bool = False


@dataclass(frozen=True)
class Listing:
    """The samples of a source that can become rows, and those that cannot. A plan has the former in row order.

    Memory per sample is 44 bytes, the name, and 8 bytes for each number.

    Attributes:
        records: One record of dtype RECORD per sample.
        names: The bytes of all names, in the order of the samples.
        numbers: The values of the source's columns by file name, and of `Entry.numbers` by name, each (samples, ...).
        columns: The columns of numbers. If values are not known yet, only the names count.
        rejects: The samples that cannot become rows.
        digest: Covers class, size, name, boxes and values of every entry, and whether it can become a row.
        digest_with_times: Covers the same and the versions and places.
        classes: The classes in label order.
        box_classes: The classes of kept boxes in label order; None without kept boxes.
        warnings: Sentences about what was found.
        carried: Lines for rejects.tsv that come with the source. They do not count as rejects of a build.
    """

    records: NDArray[np.void]
    names: NDArray[np.uint8]
    numbers: Mapping[str, np.ndarray]
    columns: tuple[Column, ...] = ()
    rejects: Sequence[Reject] = ()
    digest: str = ""
    digest_with_times: str = ""
    classes: tuple[ImageClass, ...] = ()
    box_classes: tuple[str, ...] | None = None
    warnings: list[str] = field(default_factory=list)
    carried: Sequence[Reject] = ()

    @classmethod
    def of(cls, scan: Scan, column_names: Sequence[str] = ()) -> Listing:
        """Pack the entries of a scan, whose `values` are those of columns with these names.

        Raises:
            BuildError: If the label of a sample is not that of a class.
        """
        records, names, rejects = bytearray(), bytearray(), list[Reject]()
        columns = {column_file(name): NumberColumn(name) for name in column_names}
        numbers = {} if scan.late else {**columns}
        own = [*numbers]
        digest, digest_with_times = xxhash.xxh3_64(), xxhash.xxh3_64()
        for entry in scan.entries:
            fact = b"%d\t%d\t%s%s\n" % (entry.label, entry.size, entry.name, _digested(entry))
            digest.update(fact)
            digest_with_times.update(b"%d\t%d\t%d\t%s" % (entry.version, entry.unit, entry.place, fact))
            if entry.numbers:  # may hold times and places, too
                digest_with_times.update(repr(entry.numbers).encode())
            if entry.problem:
                rejects.append(Reject(entry.text, entry.problem, "rejected"))
                continue
            place = (entry.size, entry.version, entry.unit, entry.place)
            records += PACKED.pack(entry.label, len(entry.name), len(names), *place)
            names += entry.name
            for name, value in (*zip(own, entry.values, strict=True), *entry.numbers.items()):
                numbers.setdefault(name, NumberColumn(name)).append(value)
        count = len(records) // PACKED.size
        listing = cls(
            np.frombuffer(records, RECORD),
            np.frombuffer(names, np.uint8),
            {name: column.to_array() for name, column in numbers.items()},
            tuple(column.to_column()[0] for column in columns.values()),
            rejects,
            digest.hexdigest(),
            digest_with_times.hexdigest(),
            tuple(scan.classes),
            None if scan.box_classes is None else tuple(scan.box_classes),
            scan.warnings(count),
        )
        labels = listing.records["label"]
        if not scan.late and len(wrong := np.flatnonzero((labels < 0) | (labels >= len(listing.classes)))):
            raise listing._wrong_label(int(wrong[0]))
        return scan.finish(listing)

    def _wrong_label(self, row: int) -> BuildError:
        entry = self.entry(row)
        found = f"its label is {entry.label}, but `classes` of the scan has {len(self.classes)}"
        return BuildError(f"{entry.text}: {found}; see docs/contribute/sources.md")

    def __len__(self) -> int:
        return len(self.records)

    @property
    def candidates(self) -> int:
        """Number of samples and rejects together: the total for --max-bad."""
        return len(self) + len(self.rejects)

    def entry(self, row: int) -> Entry:
        """Return one sample."""
        return self.entries(row, row + 1)[0]

    def entries(self, first: int, last: int) -> list[Entry]:
        """Return the samples [first, last). Their `numbers` also have the values of columns, by file name."""
        places = self.records[first:last][["unit", "place"]].tolist()
        lists = [values[first:last].tolist() for values in self.numbers.values()]
        held = zip(*lists, strict=True) if lists else [()] * len(places)
        return [
            Entry(*fact, unit=unit, place=place, numbers=dict(zip(self.numbers, numbers, strict=True)))
            for fact, (unit, place), numbers in zip(self.facts(first, last), places, held, strict=True)
        ]

    def facts(self, first: int, last: int) -> list[tuple[bytes, int, int, int]]:
        """Return (name, label, size, version) of samples [first, last): faster than `entries` for millions of rows."""
        found = self.records[first:last].tolist()
        start, end = found[0][2], found[-1][2] + found[-1][1]
        names = self.names[start:end].tobytes()
        return [
            (names[at - start : at - start + length], label, size, version)
            for label, length, at, size, version, _, _ in found
        ]

    def changes_in(self, found: Listing) -> str:
        """Summarize how other samples differ from these, with the first change of each kind."""
        planned, now = self._hashes(), found._hashes()
        _, here, there = np.intersect1d(planned["name"], now["name"], assume_unique=True, return_indices=True)
        parts = [
            found._count("new", np.setdiff1d(now["name"], planned["name"], assume_unique=True)),
            self._count("gone", np.setdiff1d(planned["name"], now["name"], assume_unique=True)),
            self._count("changed", planned["name"][here[planned["facts"][here] != now["facts"][there]]]),
        ]
        return "; ".join(filter(None, parts)) or "the same images with other classes, boxes, values, places or rejects"

    def _names_and_hashes(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield the name of each sample, its hash, and a hash of what may change under this name."""
        for first in range(0, len(self), CHUNK):
            for name, _, size, version in self.facts(first, min(first + CHUNK, len(self))):
                yield name, hash_of(name), hash_of(b"%d %d" % (size, version))

    def _hashes(self) -> NDArray[np.void]:
        """Return one record of dtype HASHES per name, sorted: an image with several boxes has several samples."""
        hashes = np.fromiter((each[1:] for each in self._names_and_hashes()), HASHES, len(self))
        return hashes[np.unique(hashes["name"], return_index=True)[1]]

    def _count(self, kind: str, names: NDArray[np.uint64]) -> str:
        if not len(names):
            return ""
        wanted = set(names.tolist())
        first = min(name for name, hashed, _ in self._names_and_hashes() if hashed in wanted)
        return f"{len(names)} {kind} (first {name_text(first)})"


def _digested(entry: Entry) -> bytes:
    """Return the entry's texts and values for the digest, or a mark if it has a problem.

    The problem's text is not part of the digest, because operating systems word errors differently.
    """
    if entry.problem:
        return b"\t!"
    return "".join(f"\t{fact}" for fact in (*entry.digested, *entry.values)).encode()


class NumberColumn:
    """Collects the values of a column: all numbers, or all lists of numbers of the same length.

    The dtype is int64 if all numbers are whole, otherwise float32, or float64 if there are also numbers beyond 2**24:
    there float32 has gaps of more than 1. Each number takes 8 bytes of memory.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.shape: tuple[int, ...] | None = None  # of the first value
        self._held: array[Any] = array("q")

    def check(self, value: object, where: str) -> Value:
        """Return the value if it fits this column; otherwise raise BuildError, starting with `where`."""
        numbers, shape = _numbers_and_shape(value)
        if numbers and all(map(_is_number, numbers)) and self.shape in (None, shape):
            self.shape = shape
            return value  # type: ignore[return-value]
        expected = "a number, or a list of numbers like [1, 2]"
        if self.shape is not None:
            expected = f"a list of {counted(self.shape[0], 'number')}" if self.shape else "a number"
            expected += ", like the first row"
        found = "nothing" if value is None else f"{value!r:.80}"
        rules = "numbers must be finite, and whole numbers must fit int64; for text, store token ids"
        if isinstance(value, str):
            codes = f"df[{self.name!r}].astype('category').cat.codes"
            advice = (
                f"for labels, write numbers: in pandas {codes}; for several labels of each image, see {MULTI_LABEL}"
            )
            if value[:1].isdigit():  # such as "24,5", "24 years" or "0 1 1"
                advice = "write it as 24.5 or as [0, 1, 1]"
            rules = f"{advice}; {rules}"
        elif value is None or value != value:  # nan, which pandas writes for a missing value
            advice = "if the value is missing, write a number that no row has, such as -999, or remove the row"
            rules = f"{advice}; {rules}"
        raise BuildError(f"{where}: column {self.name!r}: found {found}, expected {expected}; {rules}")

    def append(self, value: Value) -> None:
        """Append a value that `check` returned."""
        numbers, self.shape = _numbers_and_shape(value)
        if self._held.typecode == "q" and float in map(type, numbers):
            self._held = array("d", self._held)
        self._held.extend(numbers)

    def __iter__(self) -> Iterator[Value]:
        return (value.tolist() for value in self.to_array())

    def to_array(self) -> np.ndarray:
        """Return the values as int64 or float64."""
        return np.frombuffer(self._held, np.dtype(self._held.typecode)).reshape(-1, *(self.shape or ()))

    def to_column(self) -> tuple[Column, np.ndarray]:
        """Return the column of the store, and its values as int64 or float64."""
        values = self.to_array()
        fits = self._held.typecode == "d" and np.abs(values).max() <= WHOLE_IN_FLOAT32
        return Column(self.name, column_file(self.name), "<f4" if fits else values.dtype.str, values.shape[1:]), values


def _numbers_and_shape(value: object) -> tuple[list[Any], tuple[int, ...]]:
    return (value, (len(value),)) if isinstance(value, list) else ([value], ())


def _is_number(value: object) -> bool:
    """Return whether int64 or float64 can hold the value. True and False count as 1 and 0."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, float) and math.isfinite(value)
