"""Is a store whole: every row against its checksum, every other byte against the manifest."""

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
from decodeonce.store.hashing import row_checksum
from decodeonce.store.images import runs
from decodeonce.store.layout import StorePaths
from decodeonce.store.manifest import Manifest, read_manifest
from decodeonce.store.npy import npy_header
from decodeonce.store.part import read_part, rows_text
from decodeonce.store.pieces import Piece, pieces
from decodeonce.store.reader import Store
from decodeonce.store.regular_files import read_at, reading
from decodeonce.store.shard_file import page_aligned_buffer

Checksums = NDArray[np.uint64]


@dataclass(frozen=True)
class Report:
    """What `verify_store` found in so many `rows`: 0 if store.json or stage.json is bad and none could be checked.

    `bad_rows` are ranges [first, last], `problems` a sentence for each bad file. `unknown_rows`, ranges too, are those
    that differ from their checksum in a checksums.npy that is bad itself: the row may be damaged, or its checksum.
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
    """Read all of the store, or staged part, at `path` and report what differs from what was written.

    Raises only OSError. What the disk cannot read (EIO) is reported as bad. Of a part, the rows that it holds are read,
    and numbered as in the store.

    `progress` is called with the number of rows checked since its last call, from any of the `threads`.
    """
    paths = StorePaths(Path(path))
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
    bad, unknown = _bad_row_numbers(store, checksums, threads, progress or (lambda rows: None))
    if trusted:
        bad, unknown = sorted([*bad, *unknown]), []
    return Report(
        ok=not bad and not problems,
        rows=len(store.rows),
        bad_rows=row_ranges(bad),
        bad_files=sorted(problems),
        problems=[problems[name] for name in sorted(problems)],
        unknown_rows=row_ranges(unknown),
    )


def row_sentences(root: Path, report: Report, *, most: int) -> Iterator[str]:
    """A sentence for each run of bad or unknown rows, up to `most`, with its files; then how many runs are left out.

    Of a report with rows; raises StoreError if the manifest is bad by now.
    """
    manifest = read_manifest(StorePaths(root).manifest)
    unknown = [(run, "not known to be right: checksums.npy is damaged") for run in report.unknown_rows]
    told = [*((run, "not what was written") for run in report.bad_rows), *unknown]
    for (first, last), what in told[:most]:
        ends = [manifest.shard_of(row).file for row in (first, last)]
        files = " to ".join(dict.fromkeys(ends))
        yield f"{root}: {rows_text(range(first, last + 1))} of {files} {'is' if first == last else 'are'} {what}"
    if len(told) > most:
        yield f"{root}: and {counted(len(told) - most, 'more run', 'more runs')} of rows; --json lists them all"


def read_checksums(store: Store) -> Checksums:
    """(count,) uint64, as far as a damaged checksums.npy still has them in their places; 0 for those that it lacks."""
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
    """Make of a disk that cannot read a file a StoreError; what else the operating system says stays as it is."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise StoreError(f"{path}: cannot be read: {error.strerror}; expected a sound disk under it") from None


def bad_files(paths: StorePaths, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """(name, what is wrong with it) of each file that is not as the manifest says; of shards heads and sizes only.

    Also of those that are as they were signed, and no arrays that the Loader would take.
    """
    store = Store(paths, manifest)
    for name, facts in manifest.files.items():
        file = paths.root / name
        try:
            with _unreadable_is_bad(file):
                check_file(file, facts)
                _check_arrays(store, name)
        except StoreError as error:
            yield name, str(error)
    for shard in manifest.shards:
        file = paths.root / shard.file
        try:
            with _unreadable_is_bad(file):
                check_shard(file, shard, manifest.container)
                check_size(file, shard.bytes)
        except StoreError as error:
            yield shard.file, str(error)


def _check_arrays(store: Store, name: str) -> None:
    """Raise StoreError unless a file of this name holds the arrays that the store reads from it."""
    if name == store.paths.checksums.name:
        _ = store.checksums
    elif name == store.paths.labels.name:
        _ = store.labels
    for column in store.manifest.columns:
        if column.file == name:
            store.column(column)


def _bad_row_numbers(
    store: Store, checksums: Checksums, threads: int, progress: Callable[[int], None]
) -> tuple[list[int], list[int]]:
    """The rows that cannot be read, and those that can and have another checksum."""

    def check(piece: Piece) -> list[tuple[int, bool]]:
        """The bad rows of a piece, each with whether it could be read."""
        found = stored_checksums(store, piece.rows)
        expected = checksums[piece.rows.start : piece.rows.stop].tolist()
        progress(len(piece.rows))
        each = zip(piece.rows, found, expected, strict=True)
        return [(row, own is not None) for row, own, wanted in each if own != wanted]

    with ThreadPoolExecutor(threads) as pool:
        bad = [row for some in pool.map(check, pieces(store.manifest, store.rows)) for row in some]
    return [row for row, read in bad if not read], [row for row, read in bad if read]


def stored_checksums(store: Store, rows: range) -> list[int | None]:
    """The checksums of rows of one shard; None for each that its file does not hold, or its disk cannot read."""
    return [None if row is None else row_checksum(row) for row in read_rows(store, rows)]


def read_rows(store: Store, rows: range) -> list[memoryview | None]:
    """The bytes of rows of one shard; None for each that its file does not hold, or its disk cannot read."""
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
        if len(rows) > 1:  # some of them may be readable
            return [data for row in rows for data in read_rows(store, range(row, row + 1))]
    return [buffer[i * size : (i + 1) * size] if (i + 1) * size <= got else None for i in range(len(rows))]


def row_ranges(rows: list[int]) -> list[tuple[int, int]]:
    """Ranges [first, last] of row numbers in order."""
    if not rows:
        return []
    return [(rows[a], rows[b - 1]) for a, b in runs(np.diff(rows) != 1)]
