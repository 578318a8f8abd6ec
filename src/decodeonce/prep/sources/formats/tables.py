"""Parquet files of pictures: opening them, and reading some of their columns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from decodeonce.errors import PASSING_ERRORS, BuildError, failure_from


class Columns(NamedTuple):
    """What is read of a file: `picture` ("image.bytes" where it is a struct), `path` beside it or "", and `label`."""

    picture: str
    path: str
    label: str


def pyarrow() -> Any:
    """The pyarrow module, with pyarrow.parquet; BuildError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise BuildError('reading Parquet takes pyarrow: pip install "decodeonce[parquet]"') from None
    return pyarrow


def open_table(path: str, fd: int) -> Any:
    """The pyarrow.parquet.ParquetFile of an open file, with a descriptor of its own; BuildError where it is none."""
    arrow = pyarrow()
    file = os.fdopen(os.dup(fd), "rb")
    try:
        return arrow.parquet.ParquetFile(file)
    except (OSError, arrow.ArrowException) as error:
        file.close()
        raise damaged(path, error) from None


def read_group(path: str, table: Any, group: int, columns: list[str]) -> Any:
    """Some columns of a row group, as a pyarrow.Table; raises Stopped or BuildError where they cannot be read."""
    arrow = pyarrow()
    try:
        return table.read_row_group(group, columns=columns, use_threads=False)
    except (OSError, arrow.ArrowException) as error:
        raise damaged(f"{path}: row group {group}", error) from None


def damaged(what: str, error: Exception) -> Exception:
    """What an error of pyarrow means for a build: Stopped where the file system's trouble may pass, else BuildError."""
    if isinstance(error, OSError) and error.errno in PASSING_ERRORS:
        return failure_from(error, what)
    return BuildError(
        f"{what}: {' '.join(str(error).split())}; expected a whole Parquet file: copy or download it again"
    )


def column(table: Any, name: str) -> Any:
    """A column of a pyarrow.Table, or with "a.b" the field b of the column a."""
    return table[name] if name in table.column_names else table.select([name.rpartition(".")[0]]).flatten()[name]


def check_columns(path: str, table: Any, columns: Columns) -> None:
    """BuildError where a file lacks one of the leaf columns that the first file has."""
    leaves = {table.schema.column(number).path for number in range(len(table.schema))}
    for leaf in filter(None, columns):
        if leaf not in leaves:
            raise BuildError(f"{path}: no column {leaf}, which the first file has; build them apart")


def rows_of(path: str, table: Any, group: int, columns: Columns) -> Iterator[tuple[Any, str | None, bool]]:
    """Label, path and whether there is a picture, of each row of a group; pictures are read only where some lack."""
    facts = table.metadata.row_group(group)
    nulls = _nulls(facts, columns.picture)
    mixed = 0 < nulls < facts.num_rows
    wanted = [columns.label, *filter(None, [columns.path]), *([columns.picture] if mixed else [])]
    data = read_group(path, table, group, wanted)
    paths = column(data, columns.path).to_pylist() if columns.path else [None] * facts.num_rows
    there = column(data, columns.picture).is_valid().to_pylist() if mixed else [nulls == 0] * facts.num_rows
    return zip(column(data, columns.label).to_pylist(), paths, there, strict=True)


def _nulls(group: Any, name: str) -> int:
    """How many values of a leaf column are missing, as its statistics say; 0 where they do not."""
    leaves = (group.column(number) for number in range(group.num_columns))
    statistics = next(leaf.statistics for leaf in leaves if leaf.path_in_schema == name)
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else 0
