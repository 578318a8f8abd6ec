"""The TSV files of a store: UTF-8, a header line, one line per entry, backslash escapes and no quotes.

Tab, newline, carriage return and backslash are written as \\t \\n \\r \\\\; a byte that is not valid UTF-8 as \\xNN.
In Python, names are bytes decoded as UTF-8 with "surrogateescape", in every locale. The rules are in
docs/reference/format.md.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store import disk
from decodeonce.store.files import add_path_to_errors, open_regular, read_at, reading
from decodeonce.store.layout import damaged

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_SPECIAL = re.compile("[\\\\\t\n\r\udc80-\udcff]")
_ESCAPED = re.compile(r"\\(x[89a-f][0-9a-f]|[\\tnr])")
_PLAIN = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}

SAMPLE_COLUMNS = ("row", "label", "class", "source", "width", "height", "box", "digest")
REJECT_COLUMNS = ("source", "reason", "action")


def escape(text: str) -> str:
    """Escape a text for a TSV file."""
    if text.isascii() and text.isprintable() and "\\" not in text:  # twice as fast, for millions of names
        return text
    return _SPECIAL.sub(lambda m: _ESCAPES.get(m[0]) or f"\\x{ord(m[0]) - 0xDC00:02x}", text)


def unescape(field: str) -> str:
    """Return the text of a TSV field, the inverse of `escape`."""
    if "\\" not in field:
        return field
    return _ESCAPED.sub(lambda m: chr(0xDC00 + int(m[1][1:], 16)) if m[1][0] == "x" else _PLAIN[m[1]], field)


def line(fields: Sequence[str]) -> bytes:
    """Escape and encode the fields of one line of a TSV file, including the newline."""
    return ("\t".join(map(escape, fields)) + "\n").encode()


def fields(encoded: bytes) -> list[str]:
    """Return the fields of one line, the inverse of `line`."""
    return [unescape(field) for field in encoded.decode().rstrip("\n").split("\t")]


@dataclass(frozen=True)
class Sample:
    """The origin of a row, one line of samples.tsv.

    Attributes:
        row: Row number.
        label: Label, the index of its class.
        class_name: Name of its class.
        source: Path or name of the image in the source.
        width: Width of the source image in pixels.
        height: Height of the source image in pixels.
        box: The region of the source image that was cropped, "" for the whole image.
        digest: xxh3_64 of the encoded source image, 16 hexadecimal digits.

    Example:
        >>> sample = open_store("val.store").samples[0]
        >>> sample.class_name, sample.source, sample.width, sample.height
        ('n01440764', 'val/n01440764/n01440764_0.JPEG', 300, 280)
    """

    row: int
    label: int
    class_name: str
    source: str
    width: int
    height: int
    box: str
    digest: str


@dataclass(frozen=True)
class Reject:
    """A rejected or unusual image, one line of rejects.tsv.

    Attributes:
        source: Path or name of the image in the source.
        reason: What is wrong or unusual about it.
        action: "rejected": the image is not in the store. "left out": the user's map left it out. "kept": the image is
            unusual, and in the store.
    """

    source: str
    reason: str
    action: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


def sample_lines(samples: Iterable[tuple[int, int, str, str, int, int, str, str]]) -> bytes:
    """Encode lines of samples.tsv. Each sample is the tuple of the fields of a `Sample`, which is faster to make."""
    lines = [
        f"{row}\t{label}\t{escape(name)}\t{escape(source)}\t{width}\t{height}\t{box and escape(box)}\t{digest}\n"
        for row, label, name, source, width, height, box, digest in samples
    ]
    return "".join(lines).encode()


def reject_line(reject: Reject) -> bytes:
    """Encode a line of rejects.tsv."""
    return line(astuple(reject))


def read_rejects(path: Path) -> Iterator[Reject]:
    """Yield the entries of a rejects.tsv in order. Raise StoreError for a line without three fields in UTF-8."""
    with reading(path) as file:
        next(file, None)
        for number, encoded in enumerate(file, 2):
            try:
                source, reason, action = fields(encoded)
            except ValueError:
                raise damaged(path, f"line {number} is not a valid reject") from None
            yield Reject(source, reason, action)


def invalid_sample_error(path: Path, row: int) -> StoreError:
    """The error for a line of a samples.tsv that cannot be parsed."""
    return damaged(path, f"the line of row {row} is not a valid sample")


class Samples(Sequence[Sample]):
    """The lines of samples.tsv as a sequence of `Sample`.

    Iterating reads the file line by line. The first access by index scans the file for its lines and keeps their
    positions, which takes 8 bytes per row. After that, an access reads a single line.

    Raises:
        IndexError: If an index is out of range.
        StoreError: If a line is invalid, or the file has too many or too few lines.

    Example:
        >>> samples = open_store("val.store").samples
        >>> [sample.label for sample in samples]
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._count = count
        self._fd: int | None = None
        self._starts = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<Samples of {self._path}: {self._count} rows>"

    def __iter__(self) -> Iterator[Sample]:
        with reading(self._path) as file:
            next(file, None)
            row = -1
            for row, encoded in enumerate(file):
                yield self._parse(encoded, row)
        self._check_lines(row + 1)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        row = index + self._count if index < 0 else index
        if not 0 <= row < self._count:
            raise IndexError(f"sample {index} is out of range for {self._count} samples")
        if self._fd is None:
            self._starts = _line_starts(self._path)
            self._check_lines(len(self._starts) - 2)
            self._fd = open_regular(self._path)  # kept open, because opening is slow on a network file system
            weakref.finalize(self, disk.close, self._fd)
        start, end = self._starts[row + 1 : row + 3].tolist()
        encoded = bytearray(end - start)
        with add_path_to_errors(self._path):
            read_at(self._fd, memoryview(encoded), start)
        return self._parse(bytes(encoded), row)

    def _check_lines(self, found: int) -> None:
        if found != self._count:
            raise damaged(self._path, f"{found} samples, expected {self._count}")

    def _parse(self, encoded: bytes, row: int) -> Sample:
        try:
            number, label, class_name, source, width, height, box, digest = fields(encoded)
            sample = Sample(int(number), int(label), class_name, source, int(width), int(height), box, digest)
        except ValueError:
            raise invalid_sample_error(self._path, row) from None
        if sample.row != row:
            raise damaged(self._path, f"found row {sample.row}, expected {row}")
        return sample


def _line_starts(path: Path) -> NDArray[np.int64]:
    starts, offset = [np.zeros(1, np.int64)], 0
    with reading(path) as file:
        while chunk := file.read(1 << 24):
            starts.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + offset + 1)
            offset += len(chunk)
    return np.concatenate(starts)
