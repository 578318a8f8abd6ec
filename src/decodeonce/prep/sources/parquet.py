"""Parquet files like those of Hugging Face: a column of encoded images and a column of labels.

pyarrow raises an exception for nearly every damaged file, but may abort: of 4,800 files with a few bytes changed,
pyarrow 26 aborted on 2. An abort while a row group of images is read ends only a worker.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from decodeonce.errors import TRANSIENT_ERRORS, BuildError, failure_from
from decodeonce.host import limited_memory
from decodeonce.prep.listing import Entry, Scan, Undecodable, name_bytes
from decodeonce.prep.sources.archives import MAX_MEMBERS, MAX_NAME_BYTES
from decodeonce.prep.sources.class_folders import several_splits
from decodeonce.prep.sources.files import MAX_FILE_BYTES, size_problem
from decodeonce.prep.sources.holders import FileFacts, Holder, HolderFile, ObjectHolder, SourceFiles, refuse_stand_ins
from decodeonce.prep.sources.labels import (
    LABEL_COLUMNS,
    KeptColumns,
    LabeledSource,
    NoLabels,
    check_unlabeled,
    may_be_labels,
)
from decodeonce.prep.sources.patterns import matching_files
from decodeonce.store.layout import Json

MAX_FOOTER_BYTES = 1 << 26  # the footer is read whole; with 10,000 row groups of three columns it has about 4 MB
POINTER_BYTES = 1 << 10  # a pointer of Git LFS has fewer
MAX_GROUP_BYTES = 8 << 30  # size of a row group according to its metadata; a worker holds one
# Metadata may be wrong. Reading a group may take GROUP_TIMES its stated size plus MORE_BYTES before it is an error.
GROUP_TIMES, MORE_BYTES = 6, 4 << 30
MAX_LABELS_BYTES = 1 << 28  # limit for the different labels of a row group, which are held in memory
ROWS_AT_ONCE = 1024  # become objects of Python; each row may have thousands of numbers
# Errors that a damaged file causes in pyarrow or in code that uses its results. ArrowException, which is not a built-in
# exception, must be added after pyarrow is imported.
DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)
NO_BYTES = "the bytes of the image are not in the table"
IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "jpeg", "png")
# Types of columns, as pyarrow writes their names.
BINARY = {"binary", "large_binary", "binary_view"}
TEXT = {"string", "large_string", "string_view"}
INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMBERS = INTEGERS | {"float", "double", "bool"}
SPLIT = "split"  # the usual name of a column of splits
# The content and the types of the columns that --image-column and --label-column choose.
EXPECTED = {"image": ("images", "binary, or a struct with binary `bytes`"), "label": ("labels", "integers or strings")}
EXPECTED_NUMBERS = "expected integers, floats or booleans, or lists of these"
Arrow = Any  # an object of pyarrow, which has no type hints
# Label, path of the image, whether there is an image, and the values of the columns of numbers.
Row = tuple[str | None, str | None, bool, Sequence[object]]


class Columns(NamedTuple):
    """The columns to read: `image` ("image.bytes" for a struct), and `path` of the image and `label` ("" for none).

    `numbers` are the columns of numbers to keep.
    """

    image: str
    path: str
    label: str
    numbers: Sequence[str] = ()


class ParquetSource(LabeledSource):
    """The rows of Parquet files, in their order. Made by `open_parquet`.

    A sample is named by its file, its row in the file and its own path. Listing reads labels and paths but no images,
    so the size of an entry is 0. Reading an image loads the image column of its row group, and keeps it until another
    row group is needed.

    Args:
        root: The folder that file names are relative to.
        files: Name, size in bytes and mtime in ns of each file.
        columns: Names of the columns of image bytes, image path ("" for none) and label ("" for none), and a list of
            the columns of numbers to keep.
        groups: Number of row groups of each file; default (): listing finds it.
        classes: Class names in label order; default None: the names in the schema, or they follow from the labels.
        no_labels: Whether all images are of one class; default False.

    Example:
        >>> source = open_parquet("val.parquet")
        >>> len(list(source.scan().entries))
        16
    """

    kind = "parquet"
    files: SourceFiles
    unit_name = "row group"

    def __init__(
        self,
        root: Path,
        *,
        files: Iterable[FileFacts],
        columns: Sequence[Any],
        groups: Sequence[int] = (),
        classes: Sequence[str] | None = None,
        no_labels: bool = False,
    ) -> None:
        self._columns = Columns(*columns)
        super().__init__(root, classes, self._columns.numbers, no_labels=no_labels)
        self.files = SourceFiles(root, files)
        self._groups = list(groups)  # row groups per file
        self._table: tuple[int, Table] | None = None
        self._images: tuple[int, Arrow] | None = None
        self._soon = -1  # the row group that is read ahead

    @property
    def found(self) -> str:
        files, columns = self.files.describe("Parquet file"), self._columns
        return f"{files}, images from {columns.image}, {describe_labels(columns.label)}"

    def arguments(self) -> Json:
        own = {"files": self.files.facts(), "columns": [*self._columns], "groups": self._groups}
        return {**super().arguments(), **own}

    def fingerprint(self) -> object:
        return [self.files.facts(), [*self._columns], self._requested]

    def scan(self) -> Scan:
        """Return every row, file by file. Labels are read twice, first for the classes."""
        self._learn(self._scan_labels())
        return self._scanned(chain.from_iterable(map(self._listed, range(sum(self._groups)))))

    def read(self, entry: Entry) -> list[bytes]:
        if self._images is None or self._images[0] != entry.unit:
            self._images = None  # free the memory before the next row group is read
            number, group = self._locate(entry.unit)
            data = self._table_of(number).read(group, [self._columns.image])
            self._images = (entry.unit, column(data, self._columns.image))
        return [image_at(self._images[1], entry.place)]

    def read_soon(self, entry: Entry) -> None:
        if self._soon != entry.unit:
            self._soon = entry.unit
            number, group = self._locate(entry.unit)
            self._table_of(number).read_soon(group, self._columns.image)

    def _table_of(self, number: int) -> Table:
        """Return a file, opened."""
        if self._table is None or self._table[0] != number:
            self._table = (number, Table(self.files.holder(number)))
        return self._table[1]

    def options(self) -> Json:
        return {**super().options(), "image_column": self._columns.image, "label_column": self._columns.label}

    def _locate(self, unit: int) -> tuple[int, int]:
        """Return the file of row group `unit`, counted over all files, and its index there."""
        starts = list(accumulate(self._groups, initial=0))
        number = bisect_right(starts, unit) - 1
        return number, unit - starts[number]

    def _warnings(self, samples: int) -> list[str]:
        return [*super()._warnings(samples), *several_splits(SPLIT, self._splits)]

    def _scan_labels(self) -> dict[str, str]:
        """Return each label with the first file that has it. Also count row groups and find the names of classes."""
        seen: dict[str, str] = {}
        self._rows: list[list[int]] = []
        self._splits = set[str]()
        left = dict[str, None]()
        names: list[str] | None = None
        for number in range(len(self.files.files)):
            table = self._table_of(number)
            with reading(table.path):
                rows, found, labels = table.scan(self._columns)
                left |= dict.fromkeys(columns_left(table.file.schema_arrow, self._columns))
                self.are_texts = has_texts(table.file.schema_arrow, self._columns.label)
                if SPLIT not in (self._columns.label, *self._columns.numbers):
                    self._splits |= table.texts(SPLIT)
            if number and found != names:
                what = "its classes differ from those of the first file"
                raise BuildError(f"{table.path}: {what}; build the files separately")
            names = found
            self._rows.append(rows)
            for label in labels:
                seen.setdefault(label, table.path)
        self._groups, self._left = list(map(len, self._rows)), list(left)
        self._given = names if self._given is None else self._given
        return seen

    def _listed(self, unit: int) -> Iterator[Entry]:
        """Yield the rows of a row group."""
        number, group = self._locate(unit)
        table, (name, _, mtime_ns) = self._table_of(number), self.files.files[number]
        before = sum(self._rows[number][:group])
        for place, (label, inner, has_image, numbers) in enumerate(table.rows(group, self._columns)):
            row = before + place
            text = f"{name}/{row}/{inner}" if inner else f"{name}/{row}"
            of_class, problem = self._class_of(label)
            problem = problem if has_image else NO_BYTES
            values = self._checked(numbers, f"{table.path}: row {row}") if numbers and not problem else ()
            yield Entry(name_bytes(text), of_class, 0, mtime_ns, problem, unit, place, values=values)


def open_parquet(
    src: str | Path,
    *,
    image_column: Annotated[str, "Read images from this column. (default: the only one)", "NAME"] = "",
    label_column: Annotated[str, "Read labels from this column. (default: the only one)", "NAME"] = "",
    column: KeptColumns = None,
    no_labels: NoLabels = False,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ParquetSource:
    """Read Parquet files like those of Hugging Face. SRC is a file, a folder, or a pattern with braces or wildcards.

    Columns are recognized by their types and names. Requires pyarrow.

    Args:
        src: A Parquet file, a folder that holds the files of one split, or a pattern with braces or wildcards.
        image_column: Name of the column of images, binary or a struct with binary `bytes`; default "": the only one.
        label_column: Name of the column of labels, integers or strings; default "": the only one.
        column: Names of columns of numbers, or of lists of numbers, to keep in the store; default None: none. If
            there are no other columns but the images, and none looks like labels, all images are of one class.
        no_labels: Whether to ignore labels: all images are of one class; default False.
        classes: Class names in label order; default None: the names in the schema if it has them. Otherwise labels that
            are all whole numbers are the class numbers, and other labels are sorted by their bytes.
        follow_links: Whether links in a folder may lead out of it; default False.

    Raises:
        BuildError: If pyarrow is missing, a file is missing or damaged, a folder holds several splits, or the columns
            cannot be recognized.

    Example:
        >>> source = open_parquet("val.parquet", image_column="image", label_column="label")
        >>> build(source, Path("new.store"), Recipe(height=64, width=64)).count
        16
    """
    files = matching_files(src, (".parquet",), deep=True, follow_links=follow_links)
    check_unlabeled(no_labels, label_column=label_column)
    asked: Json = {"image": image_column, "label": label_column, "numbers": column or [], "no_labels": no_labels}
    with closing(files), reading((holder := files.holder(0)).path):
        columns = find_columns(holder.path, Table(holder).file.schema_arrow, optional=classes is None, **asked)
    return ParquetSource(files.root, files=files.files, columns=columns, classes=classes, no_labels=not columns.label)


def pyarrow() -> Arrow:
    """Import pyarrow and pyarrow.parquet; raise BuildError if pyarrow is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise BuildError("reading Parquet requires pyarrow; run: pip install pyarrow") from None
    return pyarrow


class Table:
    """An open Parquet file; raise BuildError if it is invalid."""

    def __init__(self, holder: Holder) -> None:
        self.path = holder.path
        self._holder = holder
        if holder.size < POINTER_BYTES or not isinstance(holder, ObjectHolder):  # a larger object costs no request
            refuse_stand_ins(holder)
        footer = int.from_bytes(holder.read_at(max(holder.size - 8, 0), 4), "little")
        if MAX_FOOTER_BYTES < footer < holder.size:
            limit = f"expected at most {MAX_FOOTER_BYTES}; rewrite the file"
            raise BuildError(f"{self.path}: the footer has {footer} bytes, {limit}")
        with reading(self.path):
            self.file = pyarrow().parquet.ParquetFile(HolderFile(holder))

    def read(self, group: int, columns: list[str]) -> Arrow:
        """Read some columns of a row group as a pyarrow.Table; raise Stopped or BuildError on failure."""
        size = self.file.metadata.row_group(group).total_byte_size
        what, advice = f"{self.path}: row group {group}", "rewrite the file with smaller row groups"
        if not 0 <= size <= MAX_GROUP_BYTES:
            raise BuildError(f"{what}: {size} bytes, expected at most {MAX_GROUP_BYTES}; {advice}")
        try:
            with limited_memory(most := GROUP_TIMES * size + MORE_BYTES), reading(what):
                return self.file.read_row_group(group, columns=columns, use_threads=False)
        except MemoryError:
            problem = f"takes more than {most} bytes of memory, or more than is free"
            raise BuildError(f"{what}: {problem}; {advice}") from None

    def read_soon(self, group: int, name: str) -> None:
        """Start to read the bytes of a column of a row group, which must be in an object. pyarrow parses them later."""
        chunk = _leaf(self.file.metadata.row_group(group), name)
        if chunk is not None and isinstance(self._holder, ObjectHolder):
            pages = (chunk.dictionary_page_offset, chunk.data_page_offset)
            self._holder.read_soon(min(filter(None, pages), default=0), chunk.total_compressed_size)

    def scan(self, columns: Columns) -> tuple[list[int], list[str] | None, list[str]]:
        """Return the rows of each row group, the class names and the labels, in order of appearance.

        Raise BuildError if a column is missing.
        """
        schema = self.file.schema_arrow
        leaves = {self.file.schema.column(number).path for number in range(len(self.file.schema))}
        missing = [leaf for leaf in columns[:3] if leaf and leaf not in leaves]
        missing += [name for name in columns.numbers if name not in schema.names]
        if missing:
            advice = "which the first file has; build the files separately"
            raise BuildError(f"{self.path}: no column {missing[0]}, {advice}")
        rows = [self.file.metadata.row_group(group).num_rows for group in range(self.file.num_row_groups)]
        if not all(0 <= here <= MAX_MEMBERS for here in (*rows, sum(rows))):
            expected = f"expected at most {MAX_MEMBERS}; write it as several files"
            raise BuildError(f"{self.path}: {sum(rows)} rows, {expected}")
        labels = dict[str, None]()
        for group in range(len(rows) if columns.label else 0):
            here = self._different(group, columns.label)
            if sum(map(len, here)) > MAX_LABELS_BYTES or max(map(len, here), default=0) > MAX_NAME_BYTES:
                what = f"{self.path}: row group {group}: the labels are long texts"
                raise BuildError(f"{what}; expected class names or numbers")
            labels.update(dict.fromkeys(here))
        return rows, class_names(schema, columns.label), list(labels)

    def texts(self, name: str) -> set[str]:
        """Return the different values of a column of labels as texts; none if there is no such column."""
        schema = self.file.schema_arrow
        if schema.names.count(name) != 1 or not _is_label(schema.field(name).type):
            return set()
        return {text for group in range(self.file.num_row_groups) for text in self._different(group, name)}

    def _different(self, group: int, name: str) -> list[str]:
        """Return the different values of a column in a row group as texts, in order of appearance, without nulls."""
        values = column(self.read(group, [name]), name).unique()
        return list(map(str, values.drop_null().to_pylist()))

    def rows(self, group: int, columns: Columns) -> Iterator[Row]:
        """Yield the rows of a row group. Images are only read if some are missing."""
        with reading(self.path):
            metadata = self.file.metadata.row_group(group)
            some_lack = _null_count(metadata, columns.image) > 0
        names = [*filter(None, [columns.label, columns.path]), *[columns.image] * some_lack, *columns.numbers]
        data = self.read(group, names)
        count, where = data.num_rows, f"{self.path}: row group {group}"
        if count != metadata.num_rows:
            raise BuildError(f"{where}: {count} rows, expected {metadata.num_rows}; download the file again")
        for first in range(0, count, ROWS_AT_ONCE):
            with reading(where):
                some = data.slice(first, min(ROWS_AT_ONCE, count - first))  # without columns, pyarrow does not clamp it
                some = _rows_of(some, columns, where, some_lack=some_lack)
            yield from some


def _rows_of(data: Arrow, columns: Columns, where: str, *, some_lack: bool) -> list[Row]:
    """Return the rows of a pyarrow.Table; if some lack an image, the column of images is among its columns."""
    count = data.num_rows
    found = column(data, columns.label).to_pylist() if columns.label else [None] * count
    labels = (None if label is None else str(label) for label in found)
    paths = column(data, columns.path).to_pylist() if columns.path else [None] * count
    if any(len(path) > MAX_NAME_BYTES for path in filter(None, paths)):
        raise BuildError(f"{where}: a path of more than {MAX_NAME_BYTES} bytes; shorten it")
    images = column(data, columns.image).is_valid().to_pylist() if some_lack else [True] * count
    numbers = [data[name].to_pylist() for name in columns.numbers]
    return list(zip(labels, paths, images, zip(*numbers, strict=True) if numbers else [()] * count, strict=True))


def _leaf(group: Arrow, name: str) -> Arrow | None:
    """Return the metadata of a leaf column of a row group."""
    leaves = (group.column(number) for number in range(group.num_columns))
    return next((leaf for leaf in leaves if leaf.path_in_schema == name), None)


def _null_count(group: Arrow, name: str) -> int:
    """Return the number of nulls in a leaf column according to its statistics; 0 without statistics."""
    leaf = _leaf(group, name)
    statistics = leaf.statistics if leaf is not None else None
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else 0


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn an error of pyarrow into Stopped if a failure of the file system may pass, otherwise into BuildError."""
    try:
        yield
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (*DAMAGED, pyarrow().ArrowException) as error:
        if isinstance(error, OSError) and error.errno in TRANSIENT_ERRORS:
            raise failure_from(error, what) from None
        found, expected = " ".join(str(error).split()), "expected a complete Parquet file; copy or download it again"
        raise BuildError(f"{what}: {found}; {expected}") from None


def column(table: Arrow, name: str) -> Arrow:
    """Return a column of a pyarrow.Table; "a.b" is the field b of the column a."""
    return table[name] if name in table.column_names else table.select([name.rpartition(".")[0]]).flatten()[name]


def image_at(images: Arrow, place: int) -> bytes:
    """Return the bytes in a row of a column of images; raise Undecodable if there are none or too many."""
    image = images[place].as_py() if place < len(images) else None
    if image is None:
        raise Undecodable(NO_BYTES)
    if len(image) > MAX_FILE_BYTES:
        raise Undecodable(size_problem(len(image)))
    return bytes(image)


def find_columns(
    path: str,
    schema: Arrow,
    *,
    image: str = "",
    label: str = "",
    numbers: Sequence[str] = (),
    no_labels: bool = False,
    optional: bool = False,
) -> Columns:
    """Return the columns of images and labels of a schema, by type and name, or the ones passed as `image` and `label`.

    `numbers` are the columns of numbers to keep. With `no_labels`, there is no column of labels. With `optional`, there
    is none if `numbers` are all other columns, and none of them looks like labels. Raise BuildError if a column is
    missing, ambiguous or of another type.
    """
    images = {field.name: leaves for field in schema if (leaves := _image_leaves(field)) is not None}
    likely = [name for name in images if name.lower() in IMAGE_COLUMNS] if len(images) > 1 else list(images)
    labels = [field.name for field in schema if _is_label(field.type)]
    coded = [name for name in labels if class_names(schema, name) is not None]
    known = coded or list(filter(may_be_labels, labels))
    known = [name for name in known if name not in numbers] or known
    others = {name.lower() for name in schema.names if name not in numbers}
    if others & {*LABEL_COLUMNS} - {"class_id"}:  # a number of the class is next to it
        known = [name for name in known if name.lower() != "class_id"]
    if image:
        likely = [name for name, leaves in images.items() if image in (name, leaves[0])]
    if label:
        known = [name for name in labels if name == label]
    chosen = _choose(path, schema, "image", likely, image)
    # Any other column may hold labels, of a type that labels must not have.
    kept_all = bool(numbers) and {*schema.names} == {chosen, *numbers}
    no_labels = no_labels or (optional and not label and not known and kept_all)
    for name in numbers:
        _check_numbers(path, schema, name)
    return Columns(*images[chosen], "" if no_labels else _choose(path, schema, "label", known, label), list(numbers))


def columns_left(schema: Arrow, columns: Columns) -> list[str]:
    """Return the names of the columns of a schema that are not read."""
    read = {columns.image, columns.image.rpartition(".")[0], columns.label, *columns.numbers}
    return [name for name in schema.names if name not in read]


def describe_labels(column: str) -> str:
    """Return where labels come from, as text."""
    return f"labels from {column}" if column else "without labels"


def _check_numbers(path: str, schema: Arrow, name: str) -> None:
    fields = [field for field in schema if field.name == name]
    if len(fields) != 1:
        raise BuildError(f"{path}: --column {name}: no such column; {_describe_columns(schema)}")
    kind = str(getattr(fields[0].type, "value_type", fields[0].type))
    if kind not in NUMBERS:
        text = "; for text, store token ids" if kind in TEXT else ""
        raise BuildError(f"{path}: column {name} has type {fields[0].type}; {EXPECTED_NUMBERS}{text}")


def _describe_columns(schema: Arrow) -> str:
    return "the columns are " + ", ".join(f"{field.name} ({field.type})" for field in schema)


def _choose(path: str, schema: Arrow, what: str, found: list[str], named: str) -> str:
    """Return the only column in `found`; raise BuildError if there is none or several. `named` is the user's choice."""
    if len(found) == 1:
        return found[0]
    columns, (content, expected) = _describe_columns(schema), EXPECTED[what]
    numbers = [field.name for field in schema if what == "label" and str(field.type) in NUMBERS - INTEGERS]
    if uncast := next((name for name in numbers if (name == named if named else may_be_labels(name))), ""):
        cast = f"table.set_column({schema.names.index(uncast)}, {uncast!r}, table[{uncast!r}].cast('int64'))"
        columns += f"; if {uncast} has class numbers, cast it to int64: table = {cast} in pyarrow, or "
        columns += f"data = data.cast_column({uncast!r}, datasets.Value('int64')) in datasets"
    if named:
        problem = f"cannot hold {content}, expected {expected}" if named in schema.names else "no such column"
        raise BuildError(f"{path}: --{what}-column {named}: {problem}; {columns}")
    problem = f"several columns may hold {content} ({', '.join(found)})" if found else f"no column looks like {content}"
    advice = f"choose one with --{what}-column" + (", or pass --no-labels" if what == "label" else "")
    raise BuildError(f"{path}: {problem}; {advice}; {columns}")


def _image_leaves(field: Arrow) -> tuple[str, str] | None:
    """Return the leaf columns with an image's bytes and path ("" for none), or None for a column of other content."""
    if str(field.type) in BINARY:
        return field.name, ""
    inner = {part.name: str(part.type) for part in field.type} if str(field.type).startswith("struct<") else {}
    if inner.get("bytes") not in BINARY:
        return None
    return f"{field.name}.bytes", f"{field.name}.path" if "path" in inner else ""


def _is_label(kind: Arrow) -> bool:
    return _value_type(kind) in INTEGERS | TEXT


def _value_type(kind: Arrow) -> str:
    return str(kind.value_type if str(kind).startswith("dictionary<") else kind)


def has_texts(schema: Arrow, label: str) -> bool:
    """Return whether the column of labels, if there is one, holds texts, which may be names such as "10"."""
    return label != "" and _value_type(schema.field(label).type) in TEXT


def class_names(schema: Arrow, label: str) -> list[str] | None:
    """Return the names in Hugging Face's ClassLabel of a column, from the schema's metadata; None without one."""
    try:
        known = json.loads((schema.metadata or {})[b"huggingface"])
        names = known["info"]["features"][label]["names"]
        found = [names[key] for key in sorted(names, key=int)] if isinstance(names, dict) else list(names)
        name_bytes("".join(found))  # raises an error for lone surrogates, which JSON can contain
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return found
