"""Open Parquet files of images and read some of their columns."""

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

MAX_FOOTER_BYTES = 1 << 26  # the footer is read whole; with 10,000 row groups of three columns it has about 4 MB
MAX_GROUP_BYTES = 8 << 30  # size of a row group according to its metadata; a worker holds one
# Metadata may be wrong. Reading a group may take GROUP_TIMES its stated size plus MORE_BYTES before it is an error.
GROUP_TIMES, MORE_BYTES = 6, 4 << 30


# Errors that a damaged file causes in pyarrow or in code that uses its results. ArrowException, which is not a built-in
# exception, must be added after pyarrow is imported.
DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)


NO_BYTES = "the bytes of the image are not in the table"


class Columns(NamedTuple):
    """The columns to read: `image` ("image.bytes" for a struct), `path` of the image ("" for none), and `label`.

    `numbers` are the columns of numbers to keep.
    """

    image: str
    path: str
    label: str
    numbers: Sequence[str] = ()


def pyarrow() -> Any:
    """Import pyarrow and pyarrow.parquet; raise BuildError if pyarrow is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise BuildError("reading Parquet requires pyarrow; run: pip install pyarrow") from None
    return pyarrow


def open_table(path: str, fd: int) -> Any:
    """Return a pyarrow.parquet.ParquetFile with its own descriptor; raise BuildError if the file is invalid."""
    arrow, size = pyarrow(), os.fstat(fd).st_size
    footer = int.from_bytes(os.pread(fd, 4, max(size - 8, 0)), "little")
    if MAX_FOOTER_BYTES < footer < size:
        raise BuildError(
            f"{path}: the footer has {footer} bytes, expected at most {MAX_FOOTER_BYTES}; rewrite the file"
        )
    file = os.fdopen(os.dup(fd), "rb")
    try:
        return arrow.parquet.ParquetFile(file)
    except (*DAMAGED, arrow.ArrowException) as error:
        file.close()
        raise read_error(path, error) from None


def locate_group(unit: int, groups: Sequence[int]) -> tuple[int, int]:
    """Return the file of row group `unit`, counted over all files, and its index there. `groups`: counts per file."""
    starts = list(accumulate(groups, initial=0))
    number = bisect_right(starts, unit) - 1
    return number, unit - starts[number]


def read_group(path: str, table: Any, group: int, columns: list[str]) -> Any:
    """Read some columns of a row group as a pyarrow.Table; raise Stopped or BuildError on failure."""
    arrow, size = pyarrow(), table.metadata.row_group(group).total_byte_size
    if not 0 <= size <= MAX_GROUP_BYTES:
        advice = "rewrite the file with smaller row groups"
        raise BuildError(f"{path}: row group {group}: {size} bytes, expected at most {MAX_GROUP_BYTES}; {advice}")
    try:
        with limited_memory(most := GROUP_TIMES * size + MORE_BYTES):
            return table.read_row_group(group, columns=columns, use_threads=False)
    except MemoryError:
        problem = f"takes more than {most} bytes of memory, or more than is free"
        raise BuildError(f"{path}: row group {group}: {problem}; rewrite the file with smaller row groups") from None
    except (*DAMAGED, arrow.ArrowException) as error:
        raise read_error(f"{path}: row group {group}", error) from None


def read_error(what: str, error: Exception) -> Exception:
    """Convert an error of pyarrow: to Stopped if a failure of the file system may pass, otherwise to BuildError."""
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRORS:
        return failure_from(error, what)
    return BuildError(
        f"{what}: {' '.join(str(error).split())}; expected a complete Parquet file; copy or download it again"
    )


def column(table: Any, name: str) -> Any:
    """Return a column of a pyarrow.Table; "a.b" is the field b of the column a."""
    return table[name] if name in table.column_names else table.select([name.rpartition(".")[0]]).flatten()[name]


def image_at(images: Any, place: int) -> bytes:
    """Return the bytes in a row of a column of images; raise Undecodable if there are none or too many."""
    image = images[place].as_py() if place < len(images) else None
    if image is None:
        raise Undecodable(NO_BYTES)
    if len(image) > MAX_FILE_BYTES:
        raise Undecodable(size_problem(len(image)))
    return bytes(image)


def check_columns(path: str, table: Any, columns: Columns) -> None:
    """Raise BuildError if a file lacks one of the columns of the first file."""
    leaves = {table.schema.column(number).path for number in range(len(table.schema))}
    missing = [leaf for leaf in filter(None, columns[:3]) if leaf not in leaves]
    missing += [name for name in columns.numbers if name not in table.schema_arrow.names]
    if missing:
        raise BuildError(f"{path}: no column {missing[0]}, which the first file has; build the files separately")


# Label, path of the image, whether there is an image, and the values of the columns of numbers.
Row = tuple[str | None, str | None, bool, Sequence[Any]]


def read_rows(path: str, table: Any, group: int, columns: Columns) -> list[Row]:
    """Read the rows of a row group. Images are only read if some are missing."""
    facts = table.metadata.row_group(group)
    nulls = _null_count(facts, columns.image)
    mixed = 0 < nulls < facts.num_rows
    wanted = [columns.label, *filter(None, [columns.path]), *([columns.image] if mixed else []), *columns.numbers]
    data = read_group(path, table, group, wanted)
    count = data.num_rows
    if count != facts.num_rows:
        raise BuildError(f"{path}: row group {group}: {count} rows, expected {facts.num_rows}; download the file again")
    labels = (None if label is None else str(label) for label in column(data, columns.label).to_pylist())
    paths = column(data, columns.path).to_pylist() if columns.path else [None] * count
    has_image = column(data, columns.image).is_valid().to_pylist() if mixed else [nulls == 0] * count
    numbers = [data[name].to_pylist() for name in columns.numbers]
    return list(zip(labels, paths, has_image, zip(*numbers, strict=True) if numbers else [()] * count, strict=True))


def _null_count(group: Any, name: str) -> int:
    """Return the number of nulls in a leaf column according to its statistics; 0 without statistics."""
    leaves = (group.column(number) for number in range(group.num_columns))
    statistics = next((leaf.statistics for leaf in leaves if leaf.path_in_schema == name), None)
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else 0
