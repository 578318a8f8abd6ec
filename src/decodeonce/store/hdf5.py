"""The HDF5 container: one contiguous dataset /images per shard, and store.h5, a virtual dataset over all shards."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store.manifest import ImageClass, Manifest
from decodeonce.store.table import escape


class Hdf5Container:
    """Shards as HDF5 files: one page of metadata, then the contiguous rows. Plain h5py can read them."""

    suffix = ".h5"
    magic = b"\x89HDF\r\n\x1a\n"

    def head(self, shape: tuple[int, int, int, int], *, size: int, scratch: Path) -> bytes:
        """Return the `size` bytes before the first row, copied from a sparse file that libhdf5 writes in `scratch`.

        libver "earliest" puts superblock, group and dataset header (1,090 bytes) before the data. A metadata block of
        `size` bytes and the alignment make the data begin at byte `size`. The code checks that no metadata follows it.
        """
        import h5py

        handle, name = tempfile.mkstemp(suffix=".h5", dir=scratch)
        os.close(handle)
        template = Path(name)
        try:
            with h5py.File(
                template,
                "w",
                libver="earliest",
                meta_block_size=size,
                alignment_threshold=2048,
                alignment_interval=size,
            ) as file:
                create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                create.set_layout(h5py.h5d.CONTIGUOUS)
                create.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
                create.set_obj_track_times(False)
                space = h5py.h5s.create_simple(shape)
                dataset = h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, space, create)
                offset, nbytes = dataset.get_offset(), dataset.get_storage_size()
            if offset != size or template.stat().st_size != size + nbytes:
                raise StoreError(f"libhdf5 put the rows at byte {offset}, expected {size}; use --format npy")
            with open(template, "rb") as laid_out:
                return laid_out.read(size)
        except RuntimeError as error:  # for a file that libhdf5 cannot extend; only the text holds the errno
            code = re.search(r"errno = (\d+)", str(error))
            raise OSError(int(code[1]) if code else errno.EIO, str(error), name) from error
        finally:
            template.unlink()


def virtual_bytes(manifest: Manifest, *, labels: NDArray[np.int64], with_classes: bool = True) -> bytes:
    """Return the bytes of store.h5.

    /images is a virtual dataset over all shards, /labels a copy of the labels, and /classes the class names. Stores of
    earlier releases lack /classes: `prep repair` writes their store.h5 without it.

    The file is made in memory, because on a full disk libhdf5 may end the process with SIGSEGV. The low-level calls
    are needed because h5py's VirtualLayout would write the current time into the file.
    """
    import h5py

    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_layout(h5py.h5d.VIRTUAL)
    create.set_obj_track_times(False)
    whole = h5py.h5s.create_simple((manifest.count, *manifest.shape))
    for shard in manifest.shards:
        part = (shard.rows, *manifest.shape)
        whole.select_hyperslab((shard.first_row, 0, 0, 0), part)
        create.set_virtual(whole, os.fsencode(shard.file), b"images", h5py.h5s.create_simple(part))
    whole.select_all()
    with h5py.File("store.h5", "w", libver=("earliest", "v110"), driver="core", backing_store=False) as file:
        h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, whole, create)
        file.create_dataset("labels", data=labels)
        if with_classes:
            file.create_dataset("classes", data=[*map(_text, manifest.classes)], dtype=h5py.string_dtype("utf-8"))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _text(cls: ImageClass) -> bytes:
    """Encode a class name as in samples.tsv, in valid UTF-8. Zero bytes become "?", since HDF5 strings end at them."""
    return escape(cls.name).replace("\0", "?").encode("utf-8", "replace")
