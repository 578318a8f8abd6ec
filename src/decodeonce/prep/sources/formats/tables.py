"""Parquet files of pictures: opening them, and reading some of their columns."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from decodeonce.errors import TRANSIENT_ERRORS, BuildError, failure_from
from decodeonce.prep.entry import Undecodable
from decodeonce.prep.pixels.memory_limit import limited_memory
from decodeonce.prep.sources.base import MAX_FILE_BYTES, size_problem

MAX_FOOTER_BYTES = 1 << 26  # read whole: that of a file with 10,000 row groups of three columns has some 4 MB
MAX_GROUP_BYTES = 8 << 30  # of a row group, by its metadata; a worker holds one
# Metadata may lie: reading a group may take GROUP_TIMES what they say, and MORE_BYTES, before it ends in an error.
GROUP_TIMES, MORE_BYTES = 6, 4 << 30


# What pyarrow, and looking into what it gives, make of a damaged file; ArrowException is none of Python's own.
DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)


NO_BYTES = "the picture's bytes are not in the table"


class Columns(NamedTuple):
    """What is read of a file: `picture` ("image.bytes" where it is a struct), `path` beside it or "", and `label`.

    `numbers` are the columns that are kept.
    """

    picture: str
    path: str
    label: str
    numbers: Sequence[str] = ()


def pyarrow() -> Any:
    """The pyarrow module, with pyarrow.parquet; BuildError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise BuildError('reading Parquet takes pyarrow: pip install "decodeonce[parquet]"') from None
    return pyarrow


def open_table(path: str, fd: int) -> Any:
    """The pyarrow.parquet.ParquetFile of an open file, with a descriptor of its own; BuildError where it is none."""
    arrow, size = pyarrow(), os.fstat(fd).st_size
    footer = int.from_bytes(os.pread(fd, 4, max(size - 8, 0)), "little")
    if MAX_FOOTER_BYTES < footer < size:
        raise BuildError(f"{path}: a footer of {footer} bytes, expected at most {MAX_FOOTER_BYTES}; write it anew")
    file = os.fdopen(os.dup(fd), "rb")
    try:
        return arrow.parquet.ParquetFile(file)
    except (*DAMAGED, arrow.ArrowException) as error:
        file.close()
        raise read_error(path, error) from None


def locate_group(unit: int, groups: Sequence[int]) -> tuple[int, int]:
    """The number of a file, and which of its row groups is number `unit` of all; `groups` is how many each has."""
    starts = list(accumulate(groups, initial=0))
    number = bisect_right(starts, unit) - 1
    return number, unit - starts[number]


def read_group(path: str, table: Any, group: int, columns: list[str]) -> Any:
    """Some columns of a row group, as a pyarrow.Table; raises Stopped or BuildError where they cannot be read."""
    arrow, size = pyarrow(), table.metadata.row_group(group).total_byte_size
    if not 0 <= size <= MAX_GROUP_BYTES:
        cure = "write the file with smaller ones"
        raise BuildError(f"{path}: row group {group}: {size} bytes, expected at most {MAX_GROUP_BYTES}; {cure}")
    try:
        with limited_memory(most := GROUP_TIMES * size + MORE_BYTES):
            return table.read_row_group(group, columns=columns, use_threads=False)
    except MemoryError:
        more = f"takes more than {most} bytes of memory, or than there is"
        raise BuildError(f"{path}: row group {group}: {more}; write the file anew") from None
    except (*DAMAGED, arrow.ArrowException) as error:
        raise read_error(f"{path}: row group {group}", error) from None


def read_error(what: str, error: Exception) -> Exception:
    """What an error of pyarrow means for a build: Stopped where the file system's trouble may pass, else BuildError."""
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRORS:
        return failure_from(error, what)
    return BuildError(
        f"{what}: {' '.join(str(error).split())}; expected a whole Parquet file: copy or download it again"
    )


def column(table: Any, name: str) -> Any:
    """A column of a pyarrow.Table, or with "a.b" the field b of the column a."""
    return table[name] if name in table.column_names else table.select([name.rpartition(".")[0]]).flatten()[name]


def image_at(pictures: Any, place: int) -> bytes:
    """The bytes in a row of a column of pictures; raises Undecodable where there are none, or too many."""
    picture = pictures[place].as_py() if place < len(pictures) else None
    if picture is None:
        raise Undecodable(NO_BYTES)
    if len(picture) > MAX_FILE_BYTES:
        raise Undecodable(size_problem(len(picture)))
    return bytes(picture)


def check_columns(path: str, table: Any, columns: Columns) -> None:
    """BuildError where a file lacks one of the leaf columns that the first file has."""
    leaves = {table.schema.column(number).path for number in range(len(table.schema))}
    missing = [leaf for leaf in filter(None, columns[:3]) if leaf not in leaves]
    missing += [name for name in columns.numbers if name not in table.schema_arrow.names]
    if missing:
        raise BuildError(f"{path}: no column {missing[0]}, which the first file has; build them apart")


# A label, the picture's own path, whether there is a picture, and what is in the columns that are kept.
Row = tuple[str | None, str | None, bool, Sequence[Any]]


def read_rows(path: str, table: Any, group: int, columns: Columns) -> list[Row]:
    """The rows of a group; pictures are read only where some lack."""
    facts = table.metadata.row_group(group)
    nulls = _nulls(facts, columns.picture)
    mixed = 0 < nulls < facts.num_rows
    wanted = [columns.label, *filter(None, [columns.path]), *([columns.picture] if mixed else []), *columns.numbers]
    data = read_group(path, table, group, wanted)
    count = data.num_rows
    if count != facts.num_rows:
        raise BuildError(f"{path}: row group {group}: {count} rows, expected {facts.num_rows}; get it again")
    labels = (None if label is None else str(label) for label in column(data, columns.label).to_pylist())
    paths = column(data, columns.path).to_pylist() if columns.path else [None] * count
    there = column(data, columns.picture).is_valid().to_pylist() if mixed else [nulls == 0] * count
    numbers = [data[name].to_pylist() for name in columns.numbers]
    return list(zip(labels, paths, there, zip(*numbers, strict=True) if numbers else [()] * count, strict=True))


def _nulls(group: Any, name: str) -> int:
    """How many values of a leaf column are missing, as its statistics say; 0 where they do not."""
    leaves = (group.column(number) for number in range(group.num_columns))
    statistics = next((leaf.statistics for leaf in leaves if leaf.path_in_schema == name), None)
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else 0
