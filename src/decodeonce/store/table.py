"""The TSV files of a store: one header line, UTF-8, a line a row, backslash escapes and no quoting.

Tab, newline, carriage return and backslash are written as \\t \\n \\r \\\\; a byte that is not part of valid UTF-8 as
\\xNN. Names travel as bytes decoded as UTF-8 with "surrogateescape", in every locale. docs/format.md has the rules.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError, naming
from decodeonce.store import disk
from decodeonce.store.layout import verify_command
from decodeonce.store.regular_files import open_regular, read_at, reading

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_SPECIAL = re.compile("[\\\\\t\n\r\udc80-\udcff]")
_ESCAPED = re.compile(r"\\(x[89a-f][0-9a-f]|[\\tnr])")
_PLAIN = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}

SAMPLE_COLUMNS = ("row", "label", "class", "source", "width", "height", "box", "digest")
REJECT_COLUMNS = ("source", "reason", "action")


def escape(text: str) -> str:
    """The field as it stands in a TSV file."""
    return _SPECIAL.sub(lambda m: _ESCAPES.get(m[0]) or f"\\x{ord(m[0]) - 0xDC00:02x}", text)


def unescape(field: str) -> str:
    """The text a TSV field stands for; the inverse of `escape`."""
    if "\\" not in field:
        return field
    return _ESCAPED.sub(lambda m: chr(0xDC00 + int(m[1][1:], 16)) if m[1][0] == "x" else _PLAIN[m[1]], field)


def line(fields: Sequence[str]) -> bytes:
    """One line of a TSV file, escaped and encoded, with its newline."""
    return ("\t".join(map(escape, fields)) + "\n").encode()


def fields(encoded: bytes) -> list[str]:
    """The fields of one line; the inverse of `line`."""
    return [unescape(field) for field in encoded.decode().rstrip("\n").split("\t")]


@dataclass(frozen=True)
class Sample:
    """One line of samples.tsv: where a row came from. `width` and `height` are the source picture's, in pixels."""

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
    """One line of rejects.tsv: a source picture that became no row, or an odd one that did (`action` says which)."""

    source: str
    reason: str
    action: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.source}: {self.reason}"


def sample_line(sample: Sample) -> bytes:
    """A line of samples.tsv."""
    return line([str(value) for value in astuple(sample)])


def escaped_sample_line(
    row: int, label: int, class_name: str, source: str, width: int, height: int, box: str, digest: str
) -> bytes:
    """A line of samples.tsv whose texts are escaped already, for writing millions of them."""
    return f"{row}\t{label}\t{class_name}\t{source}\t{width}\t{height}\t{box}\t{digest}\n".encode()


def parse_sample(encoded: bytes) -> Sample:
    """The sample of one line of samples.tsv."""
    row, label, class_name, source, width, height, box, digest = fields(encoded)
    return Sample(int(row), int(label), class_name, source, int(width), int(height), box, digest)


def reject_line(reject: Reject) -> bytes:
    """A line of rejects.tsv."""
    return line(astuple(reject))


def read_rejects(path: Path) -> Iterator[Reject]:
    """The lines of a rejects.tsv, in their order; StoreError if one is not of three fields in UTF-8."""
    with reading(path) as file:
        next(file, None)
        for number, encoded in enumerate(file, 2):
            try:
                source, reason, action = fields(encoded)
            except ValueError:
                raise StoreError(f"{path}: no reject in line {number}; run {verify_command(path.parent)}") from None
            yield Reject(source, reason, action)


def invalid_sample_error(path: Path, row: int) -> StoreError:
    """The error for a line of a samples.tsv that cannot be parsed."""
    return StoreError(f"{path}: no sample in the line of row {row}; run {verify_command(path.parent)}")


class Samples(Sequence[Sample]):
    """samples.tsv as a sequence. The first access by number opens the file, and finds its lines: 8 bytes per row."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._count = count
        self._verify = verify_command(path.parent)
        self._fd: int | None = None
        self._starts = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._count

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
            raise IndexError(f"sample {index} of {self._count}")
        if self._fd is None:
            self._starts = _line_starts(self._path)
            self._check_lines(len(self._starts) - 2)
            self._fd = open_regular(self._path)  # kept open: opening takes long on a network file system
            weakref.finalize(self, disk.close, self._fd)
        start, end = self._starts[row + 1 : row + 3].tolist()
        encoded = bytearray(end - start)
        with naming(self._path):
            read_at(self._fd, memoryview(encoded), start)
        return self._parse(bytes(encoded), row)

    def _check_lines(self, found: int) -> None:
        if found != self._count:
            raise StoreError(f"{self._path}: {found} lines of rows, expected {self._count}; run {self._verify}")

    def _parse(self, encoded: bytes, row: int) -> Sample:
        try:
            sample = parse_sample(encoded)
        except ValueError:
            raise invalid_sample_error(self._path, row) from None
        if sample.row != row:
            raise StoreError(f"{self._path}: found row {sample.row}, expected {row}; run {self._verify}")
        return sample


def _line_starts(path: Path) -> NDArray[np.int64]:
    starts, offset = [np.zeros(1, np.int64)], 0
    with reading(path) as file:
        while chunk := file.read(1 << 24):
            starts.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + offset + 1)
            offset += len(chunk)
    return np.concatenate(starts)
