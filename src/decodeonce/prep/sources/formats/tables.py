"""Parquet files of pictures: opening them, and which of their columns is the picture's, which the label's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from decodeonce.errors import PASSING_ERRORS, BuildError, failure_from

PICTURE_COLUMNS = ("image", "img", "picture", "jpg", "jpeg", "png")
LABEL_COLUMNS = ("label", "labels", "class", "cls", "fine_label", "target", "category", "class_name")


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
    return table[name] if name in table.column_names else table.select([name.partition(".")[0]]).flatten()[name]


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


def find_columns(path: str, schema: Any, *, picture: str = "", label: str = "") -> Columns:
    """The columns of a schema that hold pictures and labels, or the named ones; BuildError where that is not plain."""
    pictures = {field.name: place for field in schema if (place := _picture(field)) is not None}
    likely = [name for name in pictures if name.lower() in PICTURE_COLUMNS] if len(pictures) > 1 else list(pictures)
    labels = [field.name for field in schema if _is_label(field.type)]
    coded = [name for name in labels if class_names(schema, name) is not None]
    known = coded or [name for name in labels if name.lower() in LABEL_COLUMNS]
    chosen = _choose(
        path,
        schema,
        "picture",
        likely if not picture else [name for name, leaves in pictures.items() if picture in (name, leaves[0])],
    )
    return Columns(
        *pictures[chosen],
        _choose(path, schema, "label", [name for name in labels if name == label] if label else known),
    )


def _choose(path: str, schema: Any, what: str, found: list[str]) -> str:
    if len(found) != 1:
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        problem = f"{' and '.join(found)} may each be" if found else "no column is plainly"
        raise BuildError(f"{path}: {problem} the {what}s; name one with --{what}-column; there are {columns}")
    return found[0]


def _picture(field: Any) -> tuple[str, str] | None:
    """The names of the leaf columns with a picture's bytes and path, if this column has pictures."""
    if _is_binary(field.type):
        return field.name, ""
    if not pyarrow().types.is_struct(field.type):
        return None
    inner = {part.name: part.type for part in field.type}
    if "bytes" not in inner or not _is_binary(inner["bytes"]):
        return None
    return f"{field.name}.bytes", f"{field.name}.path" if "path" in inner else ""


def _is_binary(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_label(kind: Any) -> bool:
    types = pyarrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind))


def class_names(schema: Any, label: str) -> list[str] | None:
    """The names that Hugging Face's ClassLabel gives the numbers of a column, from the schema's metadata."""
    try:
        known = json.loads((schema.metadata or {})[b"huggingface"])
        names = known["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return list(names.values() if isinstance(names, dict) else names)
