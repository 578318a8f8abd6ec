"""Parquet files as of Hugging Face: a column of encoded pictures and one of labels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Entry, name_bytes
from decodeonce.prep.sources.files import SourceFiles, source_file
from decodeonce.prep.sources.formats import tables
from decodeonce.prep.sources.formats.labels import LabelledSource
from decodeonce.prep.sources.formats.patterns import check_one_split, describe_files, find_files
from decodeonce.prep.sources.formats.table_listing import ask_about


class ParquetSource(LabelledSource):
    """The rows of Parquet files in their order; a sample is named by its file, its row there and its own path.

    Listing reads labels and paths, not pictures, so an entry's size is 0. Of a row group one column is read, whole, and
    kept until another is asked for.
    """

    kind = "parquet"
    read_unit = "row group"

    def __init__(
        self,
        root: Path,
        *,
        files: Iterable[Any],
        columns: Sequence[Any],
        groups: Sequence[int] = (),
        classes: Sequence[str] | None = None,
    ) -> None:
        self._columns = tables.Columns(*columns)
        super().__init__(root, classes, self._columns.numbers)
        self._files = SourceFiles(root, files)
        self._groups = list(groups)  # how many each file has
        self._table: tuple[int, Any] | None = None
        self._pictures: tuple[int, Any] | None = None

    @property
    def top(self) -> Path:
        """The first file: a store may lie beside them, for each is named."""
        return Path(os.fsdecode(self._files.path(0)))

    @property
    def found(self) -> str:
        """How many files there are, and the columns that are read."""
        files, columns = describe_files([file.name for file in self._files.files], "Parquet file"), self._columns
        return f"{files}, pictures from {columns.picture}, labels from {columns.label}"

    def facts(self) -> dict[str, Any]:
        """What `open_source` needs, beside kind and root, to make this source again."""
        classes = [cls.name for cls in self.classes()]
        return {"files": self._files.facts(), "columns": [*self._columns], "groups": self._groups, "classes": classes}

    def stamp(self) -> Any:
        """The files as they are now, their columns, and the classes that were asked for."""
        return [self._files.facts(), [*self._columns], self._requested]

    def entries(self) -> Iterator[Entry]:
        """Every row, file by file; the labels are read twice, first for the classes."""
        self._learn(self._first_pass())
        for number, first_unit in enumerate(accumulate(self._groups[:-1], initial=0)):
            yield from self._listed(number, first_unit)

    def read(self, entry: Entry) -> bytes:
        """The encoded bytes of one row's picture; raises Stopped, BuildError or Undecodable where there are none."""
        if self._pictures is None or self._pictures[0] != entry.unit:
            self._pictures = None  # freed before the next is read
            number, group = tables.locate_group(entry.unit, self._groups)
            path, table = self._open(number)
            data = tables.read_group(path, table, group, [self._columns.picture])
            self._pictures = (entry.unit, tables.column(data, self._columns.picture))
        return tables.image_at(self._pictures[1], entry.place)

    def holder(self, entry: Entry) -> bytes:
        """The path of the table."""
        return self._files.path(tables.locate_group(entry.unit, self._groups)[0])

    def _first_pass(self) -> dict[str, str]:
        """The labels, each with the file that first has it; counts row groups and takes the names of classes."""
        seen: dict[str, str] = {}
        self._rows: list[list[int]] = []
        names: list[str] | None = None
        for number in range(len(self._files.files)):
            path, facts = os.fsdecode(self._files.path(number)), self._ask("facts", number)
            before, names = names, facts["names"]
            if number and names != before:
                raise BuildError(f"{path}: its classes are others than those of the first file; build them apart")
            self._rows.append(facts["rows"])
            for group in range(len(facts["rows"])):
                for label in self._ask("labels", number, group=group):
                    seen.setdefault(label, path)
        self._groups = list(map(len, self._rows))
        self._given = names if self._given is None else self._given
        return seen

    def _listed(self, number: int, first_unit: int) -> Iterator[Entry]:
        path, (name, _, mtime_ns) = os.fsdecode(self._files.path(number)), self._files.files[number]
        row = 0
        for group, rows in enumerate(self._rows[number]):
            place = 0
            while place < rows and (some := self._ask("rows", number, group=group, first=place)):
                for label, inner, there, numbers in some:
                    text = f"{name}/{row}/{inner}" if inner else f"{name}/{row}"
                    of_class, problem = self._class_of(label)
                    problem = problem if there else tables.NO_BYTES
                    values = self._checked(numbers, f"{path}: row {row}") if numbers and not problem else ()
                    unit = first_unit + group
                    yield Entry(name_bytes(text), of_class, 0, mtime_ns, problem, unit, place, values=values)
                    row, place = row + 1, place + 1

    def _ask(self, what: str, number: int, **facts: Any) -> Any:
        return ask_about(self._files, number, what, columns=self._columns, **facts)

    def _open(self, number: int) -> tuple[str, Any]:
        """The path of a file, and the file; the last one stays open."""
        path = os.fsdecode(self._files.path(number))
        if self._table is None or self._table[0] != number:
            if self._table is not None:
                self._table[1].close(force=True)
            self._table = (number, tables.open_table(path, self._files.fd(number)))
        return path, self._table[1]


def open_parquet(
    src: str | Path,
    *,
    picture_column: Annotated[str, "Column of images. (default: the only one)", "NAME"] = "",
    label_column: Annotated[str, "Column of labels. (default: the only one)", "NAME"] = "",
    column: Annotated[
        list[str] | None, "Keep this column of numbers, or of lists of numbers; repeatable.", "NAME"
    ] = None,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ParquetSource:
    """Read Parquet files of Hugging Face. SRC is a file, a folder, or a pattern with braces or wildcards.

    The columns are recognised by their types and names.
    """
    root, names = find_files(os.fspath(src), (".parquet",), deep=True, follow_links=follow_links)
    if os.path.isdir(src):
        check_one_split(root, names)
    files = SourceFiles(root, [source_file(root, name) for name in names])
    columns = ask_about(files, 0, "columns", picture=picture_column, label=label_column, numbers=column or [])
    return ParquetSource(root, files=files.files, columns=columns, classes=classes)
