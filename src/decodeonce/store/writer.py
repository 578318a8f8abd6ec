"""The last step of writing a store: headers, small files and the manifest, for shards that already hold their rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.store import disk
from decodeonce.store.files import remove_file, sync_file, sync_folder, write_at, write_atomic, writing
from decodeonce.store.format import CONTAINERS, npy_header
from decodeonce.store.hashing import hexdigest
from decodeonce.store.layout import StorePaths, damaged
from decodeonce.store.manifest import DATA_OFFSET, Manifest, Shard, SmallFile
from decodeonce.store.table import escape


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


def write_small(path: Path, chunks: Iterable[bytes | memoryview], *, scratch: Path | None = None) -> SmallFile:
    """Write a small file with `write_atomic`, and return its size and digest.

    They are those of the chunks. Another finish may replace the file, and then a network file system cannot read it by
    this name for a second.
    """
    return SmallFile(*write_atomic(path, chunks, scratch=scratch))


def copy_small(
    source: Path, chunks: Iterable[bytes | memoryview], dest: Path, facts: SmallFile, *, scratch: Path
) -> None:
    """Copy the chunks of a small file `source`. If it is damaged, raise StoreError and leave `dest` unchanged."""
    state = xxhash.xxh3_64()

    def checked() -> Iterator[bytes | memoryview]:
        for chunk in chunks:
            state.update(chunk)
            yield chunk
        if state.hexdigest() != facts.xxh3:  # raised before the copy gets its name
            raise damaged(source, "damaged: its contents do not match store.json")

    write_atomic(dest, checked(), scratch=scratch)


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

    Rows and all small files must already be written. The call can be repeated after a crash. `draft` is the manifest
    without shards and files.

    Only store.h5 needs `labels`, the parts that were written to labels.npy: a network file system may not be able to
    read this file yet (see `write_small`). If they are generated, a store without store.h5 generates none.
    """
    container, shards = CONTAINERS[draft.container], []
    for index, (first, rows) in enumerate(shard_ranges(draft.count, shard_rows)):
        path = paths.shard(index, container.suffix)
        head = container.head((rows, *draft.row_shape), size=DATA_OFFSET, scratch=scratch)
        write_head(path, head)
        size = DATA_OFFSET + rows * draft.row_bytes
        shards.append(Shard(path.name, first, rows, DATA_OFFSET, size, hexdigest(head)))
    manifest = replace(draft, shards=tuple(shards), files=dict(files))
    if draft.container == "hdf5":
        virtual = virtual_bytes(manifest, labels=np.concatenate(list(labels)))
        manifest.files[paths.virtual.name] = write_small(paths.virtual, [virtual], scratch=scratch)
    encoded = manifest.to_bytes()  # with the digest, which takes longer to compute again than to parse
    write_atomic(paths.manifest, [encoded], scratch=scratch)
    return replace(manifest, digest=json.loads(encoded)["digest"])


def virtual_bytes(manifest: Manifest, *, labels: NDArray[np.int64]) -> bytes:
    """Return the bytes of store.h5.

    /images is a virtual dataset over all shards, /labels a copy of the labels, and /classes the class names.

    The file is made in memory, because on a full disk libhdf5 may end the process with SIGSEGV. The low-level calls
    are needed because h5py's VirtualLayout would write the current time into the file.
    """
    import h5py

    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_layout(h5py.h5d.VIRTUAL)
    create.set_obj_track_times(False)
    whole = h5py.h5s.create_simple((manifest.count, *manifest.row_shape))
    for shard in manifest.shards:
        part = (shard.rows, *manifest.row_shape)
        whole.select_hyperslab((shard.first_row, *(0 for _ in manifest.row_shape)), part)
        create.set_virtual(whole, os.fsencode(shard.file), b"images", h5py.h5s.create_simple(part))
    whole.select_all()
    with h5py.File("store.h5", "w", libver=("earliest", "v110"), driver="core", backing_store=False) as file:
        h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, whole, create)
        file.create_dataset("labels", data=labels)
        # Names as in samples.tsv, but in valid UTF-8, and with "?" for zero bytes, since HDF5 strings end at them.
        names = [escape(cls.name).replace("\0", "?").encode("utf-8", "replace") for cls in manifest.classes]
        file.create_dataset("classes", data=names, dtype=h5py.string_dtype("utf-8"))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


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
            with writing(path) as fd:
                disk.ftruncate(fd, shard.bytes)
    sync_file(path)  # only the last shard is cut; the process that cut it may have been killed before its flush
    index = len(manifest.shards)
    while (extra := paths.shard(index, suffix)).exists():
        remove_file(extra)  # another finish may be removing it, too
        index += 1
    sync_folder(paths.root)
