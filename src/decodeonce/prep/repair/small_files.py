"""Files of a damaged store made again from what of it is whole; only bytes that its manifest speaks of are taken."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store import disk
from decodeonce.store.checks import check_file
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.files import (
    cut_file,
    naming,
    open_regular,
    read_at,
    reserve,
    sync_folder,
    write_at,
    write_atomic,
)
from decodeonce.store.hashing import file_chunks, hexdigest
from decodeonce.store.hdf5 import virtual_bytes
from decodeonce.store.manifest import REBUILD, Manifest, Shard, SmallFile
from decodeonce.store.npy import npy_header
from decodeonce.store.reader import Store

CHUNK_ROWS = 1 << 18
COPY = f"restore it from a copy of the store (one given as --source will do), or {REBUILD}"


def write_checked(path: Path, facts: SmallFile, chunks: Iterable[bytes], *, scratch: Path) -> None:
    """Put chunks in the place of a small file, atomically; StoreError, and no change, where they are not its bytes."""

    def checked() -> Iterator[bytes]:
        state, nbytes = xxhash.xxh3_64(), 0
        for chunk in chunks:
            state.update(chunk)
            nbytes += len(chunk)
            yield chunk
        if (nbytes, state.hexdigest()) != (facts.bytes, facts.xxh3):  # before it has its name
            raise StoreError(f"{path}: what can be made again is not what was written; {COPY}")

    with naming(path):
        write_atomic(path, checked(), scratch=scratch)


def copy_small(source: Path, path: Path, facts: SmallFile, *, scratch: Path) -> bool:
    """Take a small file from another folder, if the very same is there."""
    try:
        check_file(source, facts)
    except StoreError:
        return False
    write_checked(path, facts, file_chunks(source), scratch=scratch)
    return True


def write_labels(store: Store, labels: NDArray[np.int64], *, scratch: Path) -> None:
    """Make labels.npy of (count,) int64; StoreError as `write_checked`."""
    name = store.paths.labels.name
    write_checked(store.paths.labels, store.manifest.files[name], _npy(labels, "<i8"), scratch=scratch)


def write_checksums(store: Store, checksums: NDArray[np.uint64], *, scratch: Path) -> None:
    """Make checksums.npy of (count,) uint64; StoreError as `write_checked`."""
    name = store.paths.checksums.name
    write_checked(store.paths.checksums, store.manifest.files[name], _npy(checksums, "<u8"), scratch=scratch)


def _npy(values: NDArray[np.int64] | NDArray[np.uint64], dtype: str) -> Iterator[bytes]:
    yield npy_header(values.shape, dtype)
    for first in range(0, len(values), CHUNK_ROWS):
        yield values[first : first + CHUNK_ROWS].astype(dtype).tobytes()


def write_virtual_again(store: Store, *, scratch: Path) -> None:
    """Make store.h5 of the manifest and labels.npy; StoreError as `write_checked`, or for another libhdf5."""
    path, manifest = store.paths.virtual, store.manifest
    made = virtual_bytes(manifest, labels=np.load(store.paths.labels, mmap_mode="r"))
    try:
        write_checked(path, manifest.files[path.name], [made], scratch=scratch)
    except StoreError as error:
        raise StoreError(f"{error}{other_libhdf5(manifest)}") from None


def make_head(path: Path, manifest: Manifest, shard: Shard, *, scratch: Path) -> bytes:
    """The bytes of a shard before its rows; StoreError where they cannot be had here."""
    container = CONTAINERS[manifest.container]
    head = container.head((shard.rows, *manifest.shape), size=shard.data_offset, scratch=scratch)
    if hexdigest(head) != shard.meta_xxh3:
        raise StoreError(
            f"{path}: its first {shard.data_offset} bytes cannot be made again here; restore them from a copy of the "
            f"store{other_libhdf5(manifest)}"
        )
    return head


def other_libhdf5(manifest: Manifest) -> str:
    """What to try where HDF5's own bytes came out otherwise."""
    if manifest.container != "hdf5":
        return ""
    import h5py

    decoders = manifest.recipe.get("decoders")
    written = decoders.get("libhdf5", "another") if isinstance(decoders, dict) else "another"
    return f" (libhdf5 is {h5py.version.hdf5_version} here, {written} wrote it: install an h5py with that)"


def head_is_right(path: Path, shard: Shard) -> bool:
    """Whether the bytes of a shard before its rows are those written."""
    head = bytearray(shard.data_offset)
    fd = open_regular(path)
    try:
        return read_at(fd, memoryview(head), 0) == len(head) and hexdigest(bytes(head)) == shard.meta_xxh3
    finally:
        disk.close(fd)


def restore_size(path: Path, manifest: Manifest, shard: Shard, held: range) -> None:
    """Give a shard its size: cut what is too long; what is short or missing gets holes, and room for its rows `held`.

    Of a shard with holes the head is zeros: no reader takes it for whole before `write_head`.
    """
    try:
        disk.close(open_regular(path))
        nbytes = path.stat().st_size
    except FileNotFoundError:
        nbytes = 0
    if nbytes > shard.bytes:
        return cut_file(path, shard.bytes)
    if nbytes == shard.bytes:
        return None
    fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        with naming(path):
            if nbytes:
                write_at(fd, memoryview(bytes(min(nbytes, shard.data_offset))), 0)
                disk.fsync(fd)  # before it has its size
            disk.ftruncate(fd, shard.bytes)
            if held:
                first, last = (shard.data_offset + row * manifest.row_bytes for row in (held.start, held.stop))
                reserve(fd, last - first, path, offset=first)
            disk.fsync(fd)
    finally:
        disk.close(fd)
    return sync_folder(path.parent)
