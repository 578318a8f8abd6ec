"""Verify a store: check every row against its checksum, and every other byte against the manifest."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.formatting import counted
from decodeonce.store.checks import check_file, check_shard, check_size
from decodeonce.store.files import page_aligned_buffer, read_at, reading
from decodeonce.store.format import npy_header
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import StorePaths
from decodeonce.store.manifest import Manifest, read_manifest, read_part, rows_text
from decodeonce.store.reader import Store, runs
from decodeonce.store.table import read_rejects

Checksums = NDArray[np.uint64]
MOST_RANGES = 20  # of rows that a message names; `prep verify --json` names all


@dataclass(frozen=True)
class Report:
    """The result of `verify_store`.

    Attributes:
        ok: Whether nothing is damaged.
        rows: Number of rows checked. 0 if store.json or stage.json is damaged, because then no row can be checked.
        bad_rows: Damaged rows, as ranges (first, last), both included.
        bad_files: Names of damaged or missing files, sorted.
        problems: One sentence for each bad file.
        unknown_rows: Ranges of rows that differ from their checksum while checksums.npy itself is damaged: either the
            row or its checksum is damaged.

    Example:
        >>> report = verify_store("train.store")
        >>> report.rows, report.problems
        (64, [])
    """

    ok: bool
    rows: int
    bad_rows: list[tuple[int, int]]
    bad_files: list[str]
    problems: list[str]
    unknown_rows: list[tuple[int, int]] = field(default_factory=list)


def verify_store(
    path: str | os.PathLike[str], *, threads: int = 1, progress: Callable[[int], None] | None = None
) -> Report:
    """Read a whole store or staged part, and report everything that is damaged.

    Checks every row against its checksum and every other file against the manifest. For a staged part it checks the
    rows that the part holds; they keep their numbers in the store. Data that the disk cannot read (EIO) counts as
    damaged.

    Args:
        path: Folder of the store or staged part.
        threads: Number of threads that read rows. Default: 1.
        progress: Called with the number of rows checked since the last call, from any of the threads. Default: none.

    Returns:
        Report: What is damaged. A path that is not a store gives a report, not an exception.

    Raises:
        StoreError: If `path` is a URL.
        OSError: If a file exists but cannot be read for a reason other than EIO, such as a missing permission.

    Example:
        >>> verify_store("train.store", threads=8).ok
        True
        >>> pixels = np.load("train.store/images-00000.npy", mmap_mode="r+")
        >>> pixels[3] ^= 1  # this damages a row
        >>> pixels.flush()
        >>> verify_store("train.store").bad_rows
        [(3, 3)]
    """
    paths = StorePaths(path)
    read = paths.manifest
    try:
        with _unreadable_is_bad(read):
            manifest = read_manifest(read)
        read = paths.part
        with _unreadable_is_bad(read):
            store = Store(paths, manifest, read_part(read, manifest))
    except StoreError as error:
        return Report(False, 0, [], [read.name], [str(error)])
    problems = dict(bad_files(paths, manifest))
    trusted = paths.checksums.name not in problems
    checksums = store.checksums if trusted else read_checksums(store)
    wrong = _wrong_rows(store, checksums, threads, progress or (lambda rows: None))
    bad = [row for row, is_readable in wrong if trusted or not is_readable]
    unknown = [row for row, is_readable in wrong if is_readable and not trusted]
    return Report(
        ok=not bad and not problems,
        rows=len(store.rows),
        bad_rows=row_ranges(bad),
        bad_files=sorted(problems),
        problems=[problems[name] for name in sorted(problems)],
        unknown_rows=row_ranges(unknown),
    )


def read_checksums(store: Store) -> Checksums:
    """Return the checksums that a damaged checksums.npy still holds, uint64 (count,), with 0 for missing ones."""
    found = bytearray(8 * len(store))
    header = npy_header((len(store),), "<u8")
    with (
        suppress(FileNotFoundError, StoreError),
        _unreadable_is_bad(store.paths.checksums),
        reading(store.paths.checksums) as file,
    ):
        read_at(file.fileno(), memoryview(found), len(header))
    return np.frombuffer(found, "<u8").astype(np.uint64)


@contextmanager
def _unreadable_is_bad(path: Path) -> Iterator[None]:
    """Turn the EIO of a file that the disk cannot read into a StoreError. Other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise StoreError(f"{path}: cannot be read: {error.strerror}; check the disk") from None


def bad_files(paths: StorePaths, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (name, problem) for each file that does not match the manifest. For shards, check header and size only.

    Also report files that match the manifest but do not have the contents that a reader expects.
    """
    store, shards = Store(paths, manifest), {shard.file: shard for shard in manifest.shards}
    for name in [*manifest.files, *shards]:
        file = paths.root / name
        try:
            with _unreadable_is_bad(file):
                if name in shards:
                    check_shard(file, shards[name], manifest.container)
                    check_size(file, shards[name].bytes)
                else:
                    check_file(file, manifest.files[name])
                    _check_contents(store, name)
        except StoreError as error:
            yield name, str(error)


def _check_contents(store: Store, name: str) -> None:
    """Raise StoreError unless the file `name` holds the array or table that the store reads from it."""
    if name == store.paths.checksums.name:
        _ = store.checksums
    elif name == store.paths.labels.name:
        _ = store.labels
    elif name in (store.paths.samples.name, store.paths.rejects.name):
        try:
            for _ in store.samples if name == store.paths.samples.name else read_rejects(store.paths.rejects):
                pass
        except StoreError as error:  # its advice is to verify the store
            what = str(error).rpartition("; ")[0]
            raise StoreError(f"{what}; restore it from a copy of the store, or build the store again") from None
    for column in store.manifest.columns:
        if column.file == name:
            store.column(column.name)


def _wrong_rows(
    store: Store, checksums: Checksums, threads: int, progress: Callable[[int], None]
) -> list[tuple[int, bool]]:
    """Return the rows that differ from their checksum, in order, each with whether the disk can read it."""

    def check(rows: range) -> list[tuple[int, bool]]:
        found, expected = stored_checksums(store, rows), checksums[rows.start : rows.stop].tolist()
        progress(len(rows))
        return [(row, own is not None) for row, own, wanted in zip(rows, found, expected, strict=True) if own != wanted]

    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(check, (rows for _, rows in store.manifest.pieces(store.rows)))
        return [row for rows in found for row in rows]


def stored_checksums(store: Store, rows: range) -> list[int | None]:
    """Compute the checksums of rows of one shard. None for each row that is missing or that the disk cannot read."""
    return [None if row is None else row_checksum(row) for row in read_rows(store, rows)]


def read_rows(store: Store, rows: range) -> list[memoryview | None]:
    """Read rows of one shard. None for each row that is missing or that the disk cannot read."""
    shard, size, got = store.manifest.shard_of(rows.start), store.manifest.row_bytes, 0
    buffer = page_aligned_buffer(len(rows) * size)
    try:
        with reading(store.paths.root / shard.file, buffering=0) as file:
            got = read_at(file.fileno(), buffer, shard.offset(rows.start))
    except (FileNotFoundError, StoreError):
        pass
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        if len(rows) > 1:  # read them one by one: some may be readable
            return [data for row in rows for data in read_rows(store, range(row, row + 1))]
    return [buffer[i * size : (i + 1) * size] if (i + 1) * size <= got else None for i in range(len(rows))]


def row_ranges(rows: list[int]) -> list[tuple[int, int]]:
    """Group sorted row numbers into ranges (first, last), both included."""
    if not rows:
        return []
    return [(rows[a], rows[b - 1]) for a, b in runs(np.diff(rows) != 1)]


def ranges_text(ranges: list[tuple[int, int]]) -> str:
    """Name ranges of rows for messages, up to MOST_RANGES of them."""
    named = ", ".join(rows_text(range(first, last + 1)) for first, last in ranges[:MOST_RANGES])
    more = len(ranges) - MOST_RANGES
    return f"{named} and {counted(more, 'more range')} of rows (prep verify --json lists all)" if more > 0 else named
