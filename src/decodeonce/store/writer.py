"""The last step of every store: heads, small files and manifest around rows that already lie in the shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.store import disk
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.files import cut_file, naming, remove_file, sync_file, sync_folder, write_at, write_atomic
from decodeonce.store.hashing import file_chunks, file_hexdigest, hexdigest
from decodeonce.store.hdf5 import virtual_bytes
from decodeonce.store.layout import StorePaths
from decodeonce.store.manifest import DATA_OFFSET, Manifest, Shard, SmallFile
from decodeonce.store.npy import npy_header


def shard_ranges(count: int, shard_rows: int) -> Iterator[tuple[int, int]]:
    """(first_row, rows) of each shard of a store."""
    return ((first, min(shard_rows, count - first)) for first in range(0, count, shard_rows))


def write_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    parts: Iterable[NDArray[Any]],
    *,
    scratch: Path | None = None,
) -> None:
    """Write an npy file of `shape` from arrays that follow each other, atomically and in their memory only."""

    def chunks() -> Iterator[bytes | memoryview]:
        yield npy_header(shape, dtype.str)
        for part in parts:
            yield np.ascontiguousarray(part, dtype).tobytes()

    write_atomic(path, chunks(), scratch=scratch)


def seal_store(paths: StorePaths, draft: Manifest, *, shard_rows: int, scratch: Path) -> Manifest:
    """Write heads, store.h5 and, last and atomically, store.json; returns the manifest.

    The rows, labels.npy, checksums.npy, samples.tsv, rejects.tsv and the columns must be in place. `draft` is the
    manifest without shards and files; `scratch` is a folder for temporary files. May be repeated after a crash.
    """
    shards = tuple(
        _seal_shard(paths, draft, index, first, rows, scratch)
        for index, (first, rows) in enumerate(shard_ranges(draft.count, shard_rows))
    )
    manifest = replace(draft, shards=shards)
    names = [p.name for p in (paths.labels, paths.checksums, paths.samples, paths.rejects)]
    names += [column.file for column in draft.columns]
    if draft.container == "hdf5":
        write_atomic(paths.virtual, [virtual_bytes(manifest, labels=paths.labels)], scratch=scratch)
        names.append(paths.virtual.name)
    manifest = replace(manifest, files={name: _small_file(paths.root / name) for name in names})
    write_atomic(paths.manifest, [manifest.to_bytes()], scratch=scratch)
    return manifest


def _seal_shard(paths: StorePaths, draft: Manifest, index: int, first: int, rows: int, scratch: Path) -> Shard:
    container = CONTAINERS[draft.container]
    path = paths.shard(index, container.suffix)
    head = container.head((rows, *draft.shape), size=DATA_OFFSET, scratch=scratch)
    write_head(path, head)
    return Shard(path.name, first, rows, DATA_OFFSET, DATA_OFFSET + rows * draft.row_bytes, hexdigest(head))


def write_head(path: Path, head: bytes) -> None:
    """Write the bytes before a shard's rows, durably."""
    fd = disk.open_file(path, os.O_WRONLY)
    try:
        with naming(path):
            write_at(fd, memoryview(head), 0)
            disk.fsync(fd)
    finally:
        os.close(fd)


def _small_file(path: Path) -> SmallFile:
    return SmallFile(path.stat().st_size, file_hexdigest(file_chunks(path)))


def trim_shards(paths: StorePaths, manifest: Manifest) -> None:
    """Cut what lies past the last row of a finished store, and shards that hold no row at all."""
    suffix = CONTAINERS[manifest.container].suffix
    for shard in manifest.shards:
        path = paths.root / shard.file
        if path.stat().st_size > shard.bytes:
            cut_file(path, shard.bytes)
    sync_file(path)  # who cut it, which is the last, may have been killed before its flush
    index = len(manifest.shards)
    while (extra := paths.shard(index, suffix)).exists():
        remove_file(extra)  # another finish may be at it
        index += 1
    sync_folder(paths.root)
