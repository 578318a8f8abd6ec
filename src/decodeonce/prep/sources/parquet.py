"""Parquet files like those of Hugging Face: a column of encoded images and a column of labels."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Entry, name_bytes
from decodeonce.prep.sources.formats import tables
from decodeonce.prep.sources.formats.labels import LabelledSource
from decodeonce.prep.sources.formats.patterns import check_one_split, describe_files, find_files
from decodeonce.prep.sources.holders import SourceFiles, source_file


class ParquetSource(LabelledSource):
    """The rows of Parquet files, in their order. Made by `open_parquet`.

    A sample is named by its file, its row in the file and its own path. Listing reads labels and paths but no images,
    so the size of an entry is 0. Reading an image loads the image column of its row group, and keeps it until another
    row group is needed.

    Args:
        root: The folder that file names are relative to.
        files: Name, size in bytes and mtime in ns of each file.
        columns: Names of the columns of image bytes, image path ("" for none) and label, and a list of the columns of
            numbers to keep.
        groups: Number of row groups of each file; default (): listing finds it.
        classes: Class names in label order; default None: the names in the schema, or they follow from the labels.
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
        self._groups = list(groups)  # row groups per file
        self._table: tuple[int, tables.Table] | None = None
        self._images: tuple[int, Any] | None = None

    @property
    def top(self) -> Path:
        """The first file: no folder is listed, so a store may be written next to the files."""
        return Path(os.fsdecode(self._files.path(0)))

    @property
    def found(self) -> str:
        files, columns = describe_files([file.name for file in self._files.files], "Parquet file"), self._columns
        return f"{files}, images from {columns.image}, labels from {columns.label}"

    def facts(self) -> dict[str, Any]:
        classes = [cls.name for cls in self.classes()]
        return {"files": self._files.facts(), "columns": [*self._columns], "groups": self._groups, "classes": classes}

    def stamp(self) -> Any:
        return [self._files.facts(), [*self._columns], self._requested]

    def entries(self) -> Iterator[Entry]:
        """Yield every row, file by file. Labels are read twice, first for the classes."""
        self._learn(self._scan_labels())
        for number, first_unit in enumerate(accumulate(self._groups[:-1], initial=0)):
            yield from self._listed(number, first_unit)

    def read(self, entry: Entry) -> bytes:
        if self._images is None or self._images[0] != entry.unit:
            self._images = None  # free the memory before the next row group is read
            number, group = self._locate(entry.unit)
            if self._table is None or self._table[0] != number:
                self._table = (number, tables.Table(self._files.holder(number)))
            data = self._table[1].read(group, [self._columns.image])
            self._images = (entry.unit, tables.column(data, self._columns.image))
        return tables.image_at(self._images[1], entry.place)

    def holder(self, entry: Entry) -> bytes:
        return self._files.path(self._locate(entry.unit)[0])

    def options(self) -> dict[str, Any]:
        return {"image_column": self._columns.image, "label_column": self._columns.label}

    def _locate(self, unit: int) -> tuple[int, int]:
        """Return the file of row group `unit`, counted over all files, and its index there."""
        starts = list(accumulate(self._groups, initial=0))
        number = bisect_right(starts, unit) - 1
        return number, unit - starts[number]

    def _scan_labels(self) -> dict[str, str]:
        """Return each label with the first file that has it. Also count row groups and find the names of classes."""
        seen: dict[str, str] = {}
        self._rows: list[list[int]] = []
        names: list[str] | None = None
        for number in range(len(self._files.files)):
            path, facts = os.fsdecode(self._files.path(number)), self._ask("facts", number)
            before, names = names, facts["names"]
            if number and names != before:
                raise BuildError(f"{path}: its classes differ from those of the first file; build the files separately")
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
                for label, inner, has_image, numbers in some:
                    text = f"{name}/{row}/{inner}" if inner else f"{name}/{row}"
                    of_class, problem = self._class_of(label)
                    problem = problem if has_image else tables.NO_BYTES
                    values = self._checked(numbers, f"{path}: row {row}") if numbers and not problem else ()
                    unit = first_unit + group
                    yield Entry(name_bytes(text), of_class, 0, mtime_ns, problem, unit, place, values=values)
                    row, place = row + 1, place + 1

    def _ask(self, what: str, number: int, **facts: Any) -> Any:
        return tables.ask_about(self._files, number, what, columns=self._columns, **facts)


def open_parquet(
    src: str | Path,
    *,
    image_column: Annotated[str, "Read images from this column. (default: the only one)", "NAME"] = "",
    label_column: Annotated[str, "Read labels from this column. (default: the only one)", "NAME"] = "",
    column: Annotated[
        list[str] | None, "Keep this column of numbers, or of lists of numbers; repeatable.", "NAME"
    ] = None,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ParquetSource:
    """Read Parquet files of Hugging Face. SRC is a file, a folder, or a pattern with braces or wildcards.

    Columns are recognised by their types and names. Requires pyarrow.

    Args:
        src: A Parquet file, a folder that holds the files of one split, or a pattern with braces or wildcards.
        image_column: Name of the column of images, binary or a struct with binary `bytes`; default "": the only one.
        label_column: Name of the column of labels, integers or strings; default "": the only one.
        column: Names of columns of numbers, or of lists of numbers, to keep in the store; default None: none.
        classes: Class names in label order; default None: the names in the schema if it has them. Otherwise labels that
            are all whole numbers are the class numbers, and other labels are sorted by their bytes.
        follow_links: Whether links in a folder may lead out of it; default False.

    Raises:
        BuildError: If pyarrow is missing, a file is missing or damaged, a folder holds several splits, or the columns
            cannot be recognised.

    Example:
        >>> source = open_parquet("imagenet-1k/data/train-*.parquet", image_column="image", label_column="label")
    """
    root, names = find_files(os.fspath(src), (".parquet",), deep=True, follow_links=follow_links)
    if os.path.isdir(src):
        check_one_split(root, names)
    files = SourceFiles(root, [source_file(root, name) for name in names])
    columns = tables.ask_about(files, 0, "columns", image=image_column, label=label_column, numbers=column or [])
    return ParquetSource(root, files=files.files, columns=columns, classes=classes)
