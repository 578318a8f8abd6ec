"""Read labels and paths of Parquet files for ../parquet.py, in a separate process, because pyarrow may abort.

Of 4,800 files with a few bytes changed, pyarrow 26 aborted on 2.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.prep.processes.isolated import MEMORY_BYTES, Isolated, answer_questions
from decodeonce.prep.sources.base import open_listed
from decodeonce.prep.sources.files import SourceFiles
from decodeonce.prep.sources.formats import table_columns, tables
from decodeonce.prep.sources.formats.member import MAX_MEMBERS, MAX_NAME_BYTES
from decodeonce.prep.sources.formats.tables import Columns
from decodeonce.store import disk

ROWS_AT_ONCE = 4096
ROWS_WITH_NUMBERS = 256  # fewer, because each row may have thousands of numbers
MAX_LABELS_BYTES = 1 << 28  # limit for the different labels of a row group, which are held in memory

_reader = Isolated(__name__)
_table: tuple[list[Any], Any] | None = None  # the file of the last question
_rows: tuple[list[Any], int, list[tables.Row]] | None = None


def ask_about(files: SourceFiles, number: int, ask: str, **facts: Any) -> Any:
    """Call `answer` for a file in the separate process."""
    path, (_, *as_listed) = os.fsdecode(files.path(number)), files.files[number]
    return _reader.ask(path, ask=ask, file=[path, *as_listed], **facts)


def answer(ask: str, file: list[Any], **facts: Any) -> Any:
    """Answer one of `QUESTIONS` about a file (path, size, mtime_ns); raise BuildError if it is damaged."""
    damaged = (*tables.DAMAGED, tables.pyarrow().ArrowException)
    try:
        return QUESTIONS[ask](file, **facts)
    except MemoryError:
        problem = f"listing takes more than {MEMORY_BYTES} bytes of memory"
        raise BuildError(f"{file[0]}: {problem}; rewrite the file with smaller row groups") from None
    except damaged as error:
        raise tables.read_error(file[0], error) from None


def _opened(file: list[Any]) -> Any:
    global _table, _rows
    if _table is None or _table[0] != file:
        _table = _rows = None
        fd = open_listed(os.fsencode(file[0]), *file[1:])
        try:
            _table = (file, tables.open_table(file[0], fd))
        finally:
            disk.close(fd)
    return _table[1]


def _columns(file: list[Any], **asked: Any) -> Columns:
    return table_columns.find_columns(file[0], _opened(file).schema_arrow, **asked)


def _facts(file: list[Any], columns: list[str]) -> dict[str, Any]:
    table, label = _opened(file), columns[2]
    tables.check_columns(file[0], table, Columns(*columns))
    rows = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    if not all(0 <= here <= MAX_MEMBERS for here in (*rows, sum(rows))):
        raise BuildError(f"{file[0]}: {sum(rows)} rows, expected at most {MAX_MEMBERS}; write it as several files")
    return {"rows": rows, "names": table_columns.class_names(table.schema_arrow, label)}


def _labels(file: list[Any], columns: list[str], group: int) -> list[str]:
    table, label = _opened(file), columns[2]
    values = tables.column(tables.read_group(file[0], table, group, [label]), label).unique()
    labels = list(map(str, values.drop_null().to_pylist()))
    if sum(map(len, labels)) > MAX_LABELS_BYTES or max(map(len, labels), default=0) > MAX_NAME_BYTES:
        raise BuildError(f"{file[0]}: row group {group}: the labels are long texts; expected class names or numbers")
    return labels


def _rows_from(file: list[Any], columns: list[str], group: int, first: int) -> list[tables.Row]:
    global _rows
    table = _opened(file)
    if _rows is None or _rows[:2] != (file, group):
        _rows = (file, group, tables.read_rows(file[0], table, group, Columns(*columns)))
    rows = _rows[2][first : first + (ROWS_WITH_NUMBERS if Columns(*columns).numbers else ROWS_AT_ONCE)]
    if any(len(path) > MAX_NAME_BYTES for _, path, _, _ in rows if path):
        raise BuildError(f"{file[0]}: row group {group}: a path of more than {MAX_NAME_BYTES} bytes; shorten it")
    return rows


QUESTIONS: dict[str, Callable[..., Any]] = {"columns": _columns, "facts": _facts, "labels": _labels, "rows": _rows_from}


def main(arguments: list[str]) -> int:
    """Answer the questions of `ask_about`."""
    return answer_questions(arguments, answer)
