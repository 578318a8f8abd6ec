"""The last step of writing a store: headers, small files and the manifest, for shards that already hold their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store.checks import check_size
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.durable import cut_file, remove_file, sync_file, sync_folder, write_at, write_atomic, writing
from decodeonce.store.hashing import file_chunks, hexdigest
from decodeonce.store.hdf5 import virtual_bytes
from decodeonce.store.layout import StorePaths, verify_command
from decodeonce.store.manifest import DATA_OFFSET, Manifest, Shard, SmallFile, parse_manifest
from decodeonce.store.npy import npy_header


def shard_ranges(count: int, shard_rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first_row, rows) of each shard of a store."""
    return ((first, min(shard_rows, count - first)) for first in range(0, count, shard_rows))


def write_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    parts: Iterable[NDArray[np.generic]],
    *,
    scratch: Path | None = None,
) -> SmallFile:
    """Write consecutive arrays as one npy file of `shape`, one array in memory at a time. See `write_small`."""

    def chunks() -> Iterator[bytes | memoryview]:
        yield npy_header(shape, dtype.str)
        for part in parts:
            yield np.ascontiguousarray(part, dtype).tobytes()

    return write_small(path, chunks(), scratch=scratch)


def write_small(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    scratch: Path | None = None,
    expected: SmallFile | None = None,
    otherwise: str = "",
) -> SmallFile:
    """Write a small file with `write_atomic`, and return its size and digest.

    They are computed from the chunks, not by reading the file: another finish may replace it, and then a network file
    system cannot read it by this name for a second.

    Args:
        path: The file to write.
        chunks: Its contents.
        scratch: Folder for the temporary file. Default: the folder of `path`.
        expected: The size and digest that the file must have. Default: any.
        otherwise: Message of the StoreError for a file that is not as `expected`.

    Raises:
        StoreError: If the size or digest differs from `expected`. `path` is left unchanged.
    """
    size, state = 0, xxhash.xxh3_64()

    def counted() -> Iterator[bytes | memoryview]:
        nonlocal size
        for chunk in chunks:
            size += len(chunk)
            state.update(chunk)
            yield chunk
        if expected not in (None, SmallFile(size, state.hexdigest())):  # raised before the file gets its name
            raise StoreError(otherwise)

    write_atomic(path, counted(), scratch=scratch)
    return SmallFile(size, state.hexdigest())


def copy_small(source: Path, dest: Path, facts: SmallFile, *, scratch: Path) -> None:
    """Copy a small file of a store. If it is damaged, raise StoreError and leave `dest` unchanged."""
    check_size(source, facts.bytes)
    damaged = f"{source}: damaged: its contents do not match store.json; run {verify_command(source.parent)}"
    write_small(dest, file_chunks(source), scratch=scratch, expected=facts, otherwise=damaged)


def seal_store(
    paths: StorePaths,
    draft: Manifest,
    *,
    shard_rows: int,
    scratch: Path,
    files: Mapping[str, SmallFile],
    labels: Iterable[NDArray[np.int64]],
) -> Manifest:
    """Write the headers of the shards, store.h5 and, last and atomically, store.json.

    Rows, labels.npy, checksums.npy, samples.tsv, rejects.tsv and the columns must already be written. The call can be
    repeated after a crash.

    Args:
        paths: Paths of the store.
        draft: The manifest without shards and files.
        shard_rows: Rows per shard.
        scratch: Folder for temporary files.
        files: Size and digest of the small files.
        labels: The labels, in arrays that follow each other. Read only for container "hdf5".

    Returns:
        The manifest.
    """
    shards = tuple(
        _seal_shard(paths, draft, index, first, rows, scratch)
        for index, (first, rows) in enumerate(shard_ranges(draft.count, shard_rows))
    )
    manifest = replace(draft, shards=shards)
    if draft.container == "hdf5":
        virtual = virtual_bytes(manifest, labels=np.concatenate(list(labels)))
        files = {**files, paths.virtual.name: write_small(paths.virtual, [virtual], scratch=scratch)}
    encoded = replace(manifest, files=dict(files)).to_bytes()
    write_atomic(paths.manifest, [encoded], scratch=scratch)
    return parse_manifest(encoded, paths.manifest)


def _seal_shard(paths: StorePaths, draft: Manifest, index: int, first: int, rows: int, scratch: Path) -> Shard:
    container = CONTAINERS[draft.container]
    path = paths.shard(index, container.suffix)
    head = container.head((rows, *draft.shape), size=DATA_OFFSET, scratch=scratch)
    write_head(path, head)
    return Shard(path.name, first, rows, DATA_OFFSET, DATA_OFFSET + rows * draft.row_bytes, hexdigest(head))


def write_head(path: Path, head: bytes) -> None:
    """Write the bytes before a shard's rows, durably."""
    with writing(path) as fd:
        write_at(fd, head, 0)


def trim_shards(paths: StorePaths, manifest: Manifest) -> None:
    """Remove bytes after the last row of a finished store, and shards without rows."""
    suffix = CONTAINERS[manifest.container].suffix
    for shard in manifest.shards:
        path = paths.root / shard.file
        if path.stat().st_size > shard.bytes:
            cut_file(path, shard.bytes)
    sync_file(path)  # only the last shard is cut; the process that cut it may have been killed before its flush
    index = len(manifest.shards)
    while (extra := paths.shard(index, suffix)).exists():
        remove_file(extra)  # another finish may be removing it, too
        index += 1
    sync_folder(paths.root)
