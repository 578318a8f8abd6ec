"""Lists of images as text: one path per line, or a table of paths and labels."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from decodeonce.errors import BuildError
from decodeonce.prep.sources.folder import IMAGE_SUFFIXES
from decodeonce.prep.sources.safe_open import expecting, open_regular

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "labels", "class", "cls", "class_name", "class_id", "target", "category")

EXPECTED = "expected a list of images"
LOOKED_AT = 4096  # a binary file has a zero in its first bytes
MAX_LINE = 1 << 20  # characters of a line; a path has at most 4096


class Line(NamedTuple):
    """A parsed line. `label` is None if the list has no labels, and "" if only this line has none.

    `values` are the texts in the requested columns.
    """

    number: int
    path: str
    label: str | None
    values: list[str]


@dataclass(frozen=True)
class Layout:
    """The format of a list: the separator of its columns ("" for none), and the positions of path, label and others."""

    separator: str = ""
    path: int = 0
    label: int | None = None
    header: bool = False
    others: tuple[int, ...] = ()

    def __str__(self) -> str:
        kind = {"\t": "TSV", ",": "CSV", " ": "one path and label per line", "": "one path per line"}[self.separator]
        return f"{kind}, {'classes from folder names' if self.label is None else 'with labels'}"


def read_list(file: Path, columns: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the lines of a list that are not blank; raise BuildError for a line that does not match the first."""
    layout = find_layout(file, columns)
    last = max(layout.path, layout.label or 0, *layout.others)
    for row, (number, fields) in enumerate(_rows(file, layout.separator)):
        if row == 0 and layout.header:
            continue
        if len(fields) <= last or not fields[layout.path] or "\0" in fields[layout.path]:
            raise BuildError(f"{file}: line {number}: {fields!r:.200}, expected {layout}")
        label = None if layout.label is None else fields[layout.label].strip()
        yield Line(number, fields[layout.path], label, [fields[other] for other in layout.others])


def find_layout(file: Path, columns: Sequence[str] = ()) -> Layout:
    """Find the format of a list from its name and first line, and the positions of `columns`."""
    _check_text(file)
    _, first = next(_rows(file, ""), (0, [""]))
    separator = _separator(file, first[0])
    _, fields = next(_rows(file, separator), (0, [""]))
    names = [field.strip().lower() for field in fields]
    path, label = (next((names.index(n) for n in known if n in names), None) for known in (PATH_COLUMNS, LABEL_COLUMNS))
    if path is not None and (label is not None or len(names) == 1 + len(columns)):
        others = _column_positions(file, [field.strip() for field in fields], columns)
        return Layout(separator, path, label, header=True, others=others)
    if columns and path is None:
        raise BuildError(
            f"{file}: no header line, but --column {columns[0]} needs one; expected a first line with {columns[0]} and "
            f"one of {', '.join(PATH_COLUMNS)}"
        )
    if path is not None or label is not None or len(names) > 2:
        raise BuildError(
            f"{file}: columns {', '.join(fields)[:200]}; expected a path and a label, or a header line with "
            f"one of {', '.join(PATH_COLUMNS)} and one of {', '.join(LABEL_COLUMNS)}"
        )
    return Layout(separator, 0, 1 if len(names) == 2 else None)


def _column_positions(file: Path, names: list[str], columns: Sequence[str]) -> tuple[int, ...]:
    for column in columns:
        if names.count(column) != 1:
            found = f"{names.count(column)} columns of this name" if column in names else "no column of this name"
            raise BuildError(f"{file}: --column {column}: {found}, expected one of {', '.join(names):.200}")
    return tuple(map(names.index, columns))


def _separator(file: Path, line: str) -> str:
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return "," if suffix == ".csv" else "\t"
    if "\t" in line:
        return "\t"
    path, _, number = line.rpartition(" ")
    numbered = path != "" and number.isascii() and number.isdigit()
    # a path may contain a comma
    if "," in line and not (path if numbered else line).lower().endswith(IMAGE_SUFFIXES):
        return ","
    return " " if numbered else ""


def _check_text(file: Path) -> None:
    """Raise BuildError if a file does not start like UTF-8 text: an image, an archive, or UTF-16 from Excel."""
    with expecting(file, EXPECTED), open(open_regular(file), "rb") as opened:
        begin = opened.read(LOOKED_AT)
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BuildError(f"{file}: UTF-16; expected UTF-8 text; convert it: iconv -f UTF-16 -t UTF-8")
    if b"\0" in begin:
        raise BuildError(f"{file}: binary; expected UTF-8 text with one image per line")


def _rows(file: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and fields of each line that is not blank."""
    with expecting(file, EXPECTED), _open_text(file) as text:
        for number, line in enumerate(iter(partial(text.readline, MAX_LINE + 1), ""), 1):
            if len(line) > MAX_LINE:
                raise BuildError(f"{file}: a line has more than {MAX_LINE} characters; expected a path and a label")
            fields = _csv(file, number, line) if separator == "," else _plain(line.rstrip("\r\n"), separator)
            if any(map(str.strip, fields)):
                yield number, fields


def _open_text(file: Path) -> TextIO:
    # Only \n ends a line: paths may contain the other characters that Python treats as line ends.
    return open(open_regular(file), encoding="utf-8-sig", errors="surrogateescape", newline="\n")


def _csv(file: Path, number: int, line: str) -> list[str]:
    try:
        fields = next(csv.reader([line]))
    except csv.Error as error:
        raise BuildError(f"{file}: line {number}: {error}; expected CSV") from None
    if any("\n" in field for field in fields):
        raise BuildError(f"{file}: line {number}: a quoted field spans several lines; expected one row per line")
    return fields


def _plain(line: str, separator: str) -> list[str]:
    if separator == " ":
        return line.rsplit(" ", 1)
    return line.split(separator) if separator else [line]
