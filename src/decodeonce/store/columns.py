"""Columns of your own in a finished store: added or removed, and the manifest signed again as the last step.

If a call is killed, the store is valid, with the column or without it. If the column is to be added, the same call
completes it. If it was removed, its file may be left; the same call says so.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.formatting import quoted
from decodeonce.store.durable import empty_folder, make_folder, remove_file, write_atomic
from decodeonce.store.hashing import file_chunks, file_hexdigest
from decodeonce.store.layout import StorePaths
from decodeonce.store.locks import LOCK, locked
from decodeonce.store.manifest import (
    BOX_COLUMNS,
    BOX_LABELS,
    Column,
    Manifest,
    SmallFile,
    parse_manifest,
    read_manifest,
)
from decodeonce.store.regular_files import read_regular, reading
from decodeonce.store.signed import sign
from decodeonce.store.writer import write_array

RESERVED = {"labels", "checksums", *BOX_COLUMNS}  # what builds themselves write
COPIED_AT_ONCE = 1 << 22  # bytes


def column_file(name: str) -> str:
    """The file of the column `name`; ValueError if a column cannot have this name."""
    file = f"{name}.npy"
    if not name.isprintable() or "/" in name or name.startswith((".", "images-")) or len(file.encode()) > 255:
        expected = "expected printable characters without '/', at most 251 bytes, not starting with '.' or 'images-'"
        raise ValueError(f"column name {name!r:.99}: {expected}")
    if not name:
        raise ValueError("column name '': expected at least one character")
    if name in RESERVED:
        raise ValueError(f"column name {name!r}: a build writes {', '.join(sorted(RESERVED))}; choose another name")
    return file


def read_numbers(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Map the array in an npy file; StoreError if it is none."""
    try:
        with reading(Path(path)):  # which refuses pipes
            array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        expected = "expected an npy file of numbers, as numpy.save writes it; for text, store its token ids"
        raise StoreError(f"{path}: {error}; {expected}") from None
    return array


def add_column(path: str | os.PathLike[str], name: str, values: NDArray[Any]) -> Column:
    """Add a column of numbers to the finished store at `path`, checksummed and signed like the rest of it.

    If the store has this very column, only its file is written again.

    Args:
        path: The store. A staged part is refused: stage it again after the store has the column.
        name: The column's name, that of its file without ".npy".
        values: Booleans, integers or floats, (count, ...), in the order of the rows. It may be a mapping: it is copied
            piece by piece.

    Returns:
        The column as the manifest describes it.

    Raises:
        ValueError: If the name or the array cannot be a column's.
        StoreError: If `path` is no store, or has another column or file of this name.
        OSError: If the disk fails.
    """
    file, dtype = column_file(name), values.dtype.newbyteorder("<")
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or dtype.hasobject:
        expected = "expected numbers of at most 8 bytes; for text, store its token ids"
        raise ValueError(f"column {name!r}: values of dtype {values.dtype}, {expected}")
    with _changing(path) as (paths, manifest, facts):
        if values.shape[:1] != (manifest.count,) or 0 in values.shape:
            expected = f"expected one entry for each of the {manifest.count} rows of {paths.root}"
            raise ValueError(f"column {name!r}: values of shape {values.shape}, {expected}")
        column = Column(name, file, dtype.str, values.shape[1:])
        is_new = column not in manifest.columns
        if is_new and (file in manifest.files or name in [known.name for known in manifest.columns]):
            raise _other(paths, name)
        target = paths.root / file
        there = None if is_new else manifest.files[file]
        if is_new and os.path.lexists(target):  # of a call that was killed, or somebody's own
            there = SmallFile(target.stat().st_size, file_hexdigest(file_chunks(target)))
        rows = max(1, COPIED_AT_ONCE // (dtype.itemsize * math.prod(column.shape)))
        written = write_array(
            target,
            values.shape,
            dtype,
            (values[first : first + rows] for first in range(0, manifest.count, rows)),
            scratch=paths.repair,
            expected=there,
            otherwise=str(_other(paths, name)),
        )
        if is_new:
            facts["columns"].append(asdict(column))
            facts["files"][file] = asdict(written)
            _write(paths, facts)
    return column


def remove_column(path: str | os.PathLike[str], name: str) -> None:
    """Remove a column from the finished store at `path`: first from the manifest, then its file.

    Raises:
        StoreError: If `path` is no store, or has no column of this name.
        OSError: If the disk fails.
    """
    with _changing(path) as (paths, manifest, facts):
        files = [column.file for column in manifest.columns if column.name == name]
        if not files:
            names = ", ".join(column.name for column in manifest.columns) or "none"
            told = f"{paths.root}: no column {name!r}, expected one of its columns: {names}"
            left = paths.root / f"{name}.npy"
            if left.name not in manifest.files and os.path.lexists(left):
                told += f"; {left.name} is no part of the store; if you do not need it, run: rm {quoted(str(left))}"
            raise StoreError(told)
        facts["columns"] = [column for column in facts["columns"] if column["name"] != name]
        del facts["files"][files[0]]
        if name == BOX_LABELS:
            facts.pop("box_classes", None)
        _write(paths, facts)
        remove_file(paths.root / files[0])


@contextmanager
def _changing(path: str | os.PathLike[str]) -> Iterator[tuple[StorePaths, Manifest, dict[str, Any]]]:
    """Hold the lock that repairs hold; give the manifest, also as facts with all keys that this release ignores."""
    paths = StorePaths(Path(path))
    read_manifest(paths.manifest)  # which says what is there if it is no store
    if paths.part.exists():
        raise StoreError(f"{paths.root}: a staged part; change the columns of the whole store, then stage it again")
    with locked(paths.repair, waits_for="another `prep repair` or `prep column`"):
        make_folder(paths.repair)  # `locked` makes none on a read-only file system, where this is an error
        empty_folder(paths.repair, keep=LOCK)  # of a run that was killed
        encoded = read_regular(paths.manifest)
        yield paths, parse_manifest(encoded, paths.manifest), json.loads(encoded)


def _write(paths: StorePaths, facts: dict[str, Any]) -> None:
    encoded = sign(facts)
    parse_manifest(encoded, paths.manifest)  # raises StoreError before anything that readers refuse is written
    write_atomic(paths.manifest, [encoded], scratch=paths.repair)


def _other(paths: StorePaths, name: str) -> StoreError:
    remove = f"prep column remove {quoted(str(paths.root))} {quoted(name)}"
    other = f"has another column, or another file, {column_file(name)!r}"
    return StoreError(f"{paths.root}: {other}; remove it first (`{remove}`, or `rm`), or choose another name")
