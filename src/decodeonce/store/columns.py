"""Add columns to a finished store, or remove them. Signing the manifest again is the last step of adding.

If a call is killed, the store stays valid, either with or without the column. Repeat the call to finish adding a
column. A killed removal may leave the column's file behind; the same call then reports it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.formatting import argument, quoted
from decodeonce.store import disk
from decodeonce.store.files import (
    empty_folder,
    make_folder,
    publish,
    read_regular,
    reading,
    remove_file,
    sync_folder,
    write_atomic,
)
from decodeonce.store.hashing import file_hexdigest, sign
from decodeonce.store.layout import Json, StorePaths
from decodeonce.store.manifest import (
    BOX_COLUMNS,
    BOX_LABELS,
    Column,
    Manifest,
    SmallFile,
    parse_manifest,
    read_manifest,
)
from decodeonce.store.sharing import LOCK, locked, on_network
from decodeonce.store.writer import write_array

RESERVED = {"labels", "checksums", *BOX_COLUMNS}  # written by builds
OF_BATCHES = {"images", "rows"}  # batch["rows"] is not a column
COPIED_AT_ONCE = 1 << 22  # bytes


def column_file(name: str) -> str:
    """Return the file name of the column `name`. Raise ValueError if a column cannot have this name."""
    file = f"{name}.npy"
    if not name.isprintable() or "/" in name or name.startswith((".", "images-")) or len(file.encode()) > 255:
        expected = "expected printable characters without '/', at most 251 bytes, not starting with '.' or 'images-'"
        raise ValueError(f"column name {name!r:.99}: {expected}")
    if not name:
        raise ValueError("column name '': expected at least one character")
    if name in RESERVED:
        raise ValueError(f"column name {name!r}: a build writes {', '.join(sorted(RESERVED))}; choose another name")
    if name in OF_BATCHES:
        raise ValueError(f"column name {name!r}: batch[{name!r}] is something else in training; choose another name")
    return file


def read_numbers(path: str | os.PathLike[str]) -> NDArray[np.generic]:
    """Map the array in an npy file. Raise StoreError if the file holds no array of numbers."""
    try:
        with reading(Path(path)):  # refuses pipes, which open_memmap would wait for
            array: NDArray[np.generic] = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        expected = "expected an npy file of numbers, as numpy.save writes it; for text, store its token ids"
        raise StoreError(f"{path}: {error}; {expected}") from None
    return array


def add_column(path: str | os.PathLike[str], name: str, values: NDArray[np.generic]) -> Column:
    """Add a column of numbers to the finished store at `path`, with checksum and signature like its other files.

    If the store already has this column with the same values, only its file is written again.

    Args:
        path: Path to a finished store. A staged part is refused: add the column to the store, then stage it again.
        name: Name of the column, and of its file without ".npy". At most 251 bytes.
        values: Booleans, integers or floats of at most 8 bytes, shape (count, ...), in row order. The array may be
            memory-mapped: 4 MiB are copied at a time.

    Returns:
        The column as the manifest describes it.

    Raises:
        ValueError: If the name, dtype or shape is not allowed.
        StoreError: If `path` is not a store, or already has a different column or file with this name.
        OSError: If the disk fails.

    Example:
        >>> column = add_column("train.store", "score", np.zeros(64, np.float32))
        >>> open_store("train.store").columns["score"].shape
        (64,)
    """
    file, dtype = column_file(name), values.dtype.newbyteorder("<")
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or dtype.hasobject:
        expected = "expected numbers of at most 8 bytes; for text, store its token ids"
        raise ValueError(f"column {name!r}: values of dtype {values.dtype}, {expected}")
    with _alone(path) as paths:
        count = read_manifest(paths.manifest).count
        if values.shape[:1] != (count,) or 0 in values.shape:
            expected = f"expected one entry for each of the {count} rows of {paths.root}"
            raise ValueError(f"column {name!r}: values of shape {values.shape}, {expected}")
        column = Column(name, file, dtype.str, values.shape[1:])
        rows = max(1, COPIED_AT_ONCE // (dtype.itemsize * math.prod(column.shape)))
        parts = (values[first : first + rows] for first in range(0, count, rows))
        # The name is its own: without locks, another node may prepare a column of the same name.
        prepared, target = paths.repair / f"column-{os.urandom(4).hex()}", paths.root / file
        try:
            written = write_array(prepared, values.shape, dtype, parts)
            with _changing(paths) as (manifest, facts):
                is_new = column not in manifest.columns
                existing = manifest.files.get(file)
                if is_new and os.path.lexists(target):  # left by a killed call, or the user's own file
                    existing = SmallFile(target.stat().st_size, file_hexdigest(target))
                if name in (one.name for one in manifest.paired):
                    problem = f"{name!r} is already a mask or second image that its rows hold"
                    raise StoreError(f"{paths.root}: {problem}; choose another name")
                is_column, is_part = name in (one.name for one in manifest.columns), file in manifest.files
                if (is_new and (is_part or is_column)) or existing not in (None, written):
                    remove = f"prep column remove {quoted(paths.root)} {argument(name)}"
                    remove = remove if is_column else "" if is_part else f"rm {quoted(target)}"
                    advice = f"{f'remove it first (`{remove}`), or ' if remove else ''}choose another name"
                    raise StoreError(f"{paths.root}: already has a different column or file {file!r}; {advice}")
                disk.replace(prepared, target)
                sync_folder(paths.root)
                if is_new:
                    facts["columns"].append(asdict(column))
                    facts["files"][file] = asdict(written)
                    _write_manifest(paths, facts)
        finally:
            with suppress(OSError):  # report the first error
                remove_file(prepared)
    return column


def remove_column(path: str | os.PathLike[str], name: str) -> None:
    """Remove a column from the finished store at `path`: first from the manifest, then its file.

    Args:
        path: Path to a finished store. A staged part is refused.
        name: Name of the column.

    Raises:
        StoreError: If `path` is not a store, or has no column with this name.
        OSError: If the disk fails.

    Example:
        >>> column = add_column("train.store", "score", np.zeros(64, np.float32))
        >>> remove_column("train.store", "score")
        >>> list(open_store("train.store").columns)
        []
    """
    with _alone(path) as paths:
        with _changing(paths) as (manifest, facts):
            files = [column.file for column in manifest.columns if column.name == name]
            if not files:
                names = ", ".join(column.name for column in manifest.columns) or "none"
                message = f"{paths.root}: no column {name!r}, expected one of its columns: {names}"
                file = paths.root / f"{name}.npy"
                if file.name not in manifest.files and os.path.lexists(file):
                    message += f"; {file.name} is not part of the store; to delete it, run: rm {quoted(file)}"
                raise StoreError(message)
            facts["columns"] = [column for column in facts["columns"] if column["name"] != name]
            del facts["files"][files[0]]
            if name == BOX_LABELS:
                facts.pop("box_classes", None)
            _write_manifest(paths, facts)
        # In a change of its own: once the manifest is replaced, another node may add the column again.
        with _changing(paths) as (manifest, _):
            if files[0] not in manifest.files:
                remove_file(paths.root / files[0])


@contextmanager
def _alone(path: str | os.PathLike[str]) -> Iterator[StorePaths]:
    """Hold the lock that repairs also take, if the file system has locks."""
    paths = StorePaths(path)
    read_manifest(paths.manifest)  # raises an error that describes the path if it is not a store
    if paths.part.exists():
        raise StoreError(f"{paths.root}: a staged part; change the columns of the whole store, then stage it again")
    with locked(paths.repair, waits_for="another `prep repair` or `prep column`"):
        make_folder(paths.repair)  # fails on a read-only file system, where `locked` does nothing
        empty_folder(paths.repair, keep=LOCK)  # remove what a killed run left
        yield paths


@contextmanager
def _changing(paths: StorePaths) -> Iterator[tuple[Manifest, Json]]:
    """Yield the manifest twice: parsed, and as JSON with unknown keys. No other node changes it meanwhile.

    The lock of a network file system may exclude nobody. There, a file that only one node can create takes its place.
    """
    mark = paths.repair / f"{LOCK}-column"
    exclusive = on_network(paths.root)
    if exclusive and not publish(mark, b""):
        advice = "if none is running on any node, remove this file; then run the same command again"
        raise StoreError(f"{mark}: another `prep column` is changing the store, or was killed; {advice}")
    try:
        encoded = read_regular(paths.manifest)
        yield parse_manifest(encoded, paths.manifest), json.loads(encoded)
    finally:
        if exclusive:
            remove_file(mark)


def _write_manifest(paths: StorePaths, facts: Mapping[str, object]) -> None:
    encoded = sign(facts)
    parse_manifest(encoded, paths.manifest)  # raises StoreError instead of writing a manifest that readers refuse
    write_atomic(paths.manifest, [encoded], scratch=paths.repair)
