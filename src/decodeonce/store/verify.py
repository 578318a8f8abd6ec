"""Is a store whole: every row against its checksum, every other byte against the manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store.checks import check_file, check_shard, check_size
from decodeonce.store.files import page_aligned_buffer, read_at
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import StorePaths
from decodeonce.store.manifest import Manifest, Shard, read_manifest
from decodeonce.store.part import read_part
from decodeonce.store.reader import Store, runs

READ_BYTES = 8 << 20


@dataclass(frozen=True)
class Report:
    """What `verify_store` found in so many `rows`.

    `bad_rows` are ranges [first, last], `problems` a sentence for each bad file.
    """

    ok: bool
    rows: int
    bad_rows: list[tuple[int, int]]
    bad_files: list[str]
    problems: list[str]


def verify_store(
    path: str | os.PathLike[str], *, threads: int = 1, progress: Callable[[int], None] | None = None
) -> Report:
    """Read all of the store, or staged part, at `path` and report what differs from what was written.

    Raises only OSError. Of a part the rows that it holds are read, and numbered as in the store.

    `progress` is called with the number of rows checked since its last call, from any of the `threads`.
    """
    paths = StorePaths(Path(path))
    try:
        manifest = read_manifest(paths.manifest)
    except StoreError as error:
        return Report(False, 0, [], [paths.manifest.name], [str(error)])
    try:
        store = Store(paths, manifest, read_part(paths.part, manifest))
    except StoreError as error:
        return Report(False, 0, [], [paths.part.name], [str(error)])
    problems = dict(_bad_files(paths, manifest))
    bad: list[int] = []
    if "checksums.npy" not in problems:
        try:
            bad = _bad_row_numbers(store, store.checksums, threads, progress or (lambda rows: None))
        except StoreError as error:
            problems["checksums.npy"] = str(error)
    return Report(
        ok=not bad and not problems,
        rows=len(store.rows),
        bad_rows=_ranges(bad),
        bad_files=sorted(problems),
        problems=[problems[name] for name in sorted(problems)],
    )


def _bad_files(paths: StorePaths, manifest: Manifest) -> Iterator[tuple[str, str]]:
    for name, facts in manifest.files.items():
        file = paths.root / name
        try:
            check_file(file, facts)
        except StoreError as error:
            yield name, str(error)
    for shard in manifest.shards:
        file = paths.root / shard.file
        try:
            check_shard(file, shard, manifest.container)
            check_size(file, shard.bytes)
        except StoreError as error:
            yield shard.file, str(error)


def _bad_row_numbers(
    store: Store, checksums: NDArray[np.uint64], threads: int, progress: Callable[[int], None]
) -> list[int]:
    step = max(1, READ_BYTES // store.manifest.row_bytes)
    pieces = [
        (shard, first, min(first + step, held.stop))
        for shard in store.manifest.shards
        for held in [shard.held_rows(store.rows)]
        for first in range(held.start, held.stop, step)
    ]

    def check(piece: tuple[Shard, int, int]) -> list[int]:
        shard, first, last = piece
        found = _row_checksums(store, shard, first, last)
        rows = range(shard.first_row + first, shard.first_row + last)
        progress(len(rows))
        return [row for row, checksum in zip(rows, found, strict=True) if checksum != int(checksums[row])]

    with ThreadPoolExecutor(threads) as pool:
        return sorted(row for bad in pool.map(check, pieces) for row in bad)


def _row_checksums(store: Store, shard: Shard, first: int, last: int) -> list[int | None]:
    """Checksums of rows [first, last) of a shard, None for each that its file does not hold."""
    size = store.manifest.row_bytes
    buffer = page_aligned_buffer((last - first) * size)
    try:
        with open(store.paths.root / shard.file, "rb", buffering=0) as file:
            got = read_at(file.fileno(), buffer, shard.data_offset + first * size)
    except (FileNotFoundError, IsADirectoryError):
        got = 0
    held = got // size
    return [row_checksum(buffer[i * size : (i + 1) * size]) if i < held else None for i in range(last - first)]


def _ranges(rows: list[int]) -> list[tuple[int, int]]:
    if not rows:
        return []
    return [(rows[a], rows[b - 1]) for a, b in runs(np.diff(rows) != 1)]
