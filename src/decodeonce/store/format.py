"""What the bytes of a shard mean: a container's header, then rows, each of which a codec packs.

In every container the rows are contiguous from `data_offset`. To add one, write a class like `NpyContainer`, and extend
`Container` and `CONTAINERS`. Only a codec knows where the pixels of a row lie. Everything else asks the manifest for
arrays, and gets RGB (H, W, 3). docs/contribute/architecture.md says how to add one.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any, Protocol

from decodeonce.errors import StoreError
from decodeonce.store.bc4 import Bc4
from decodeonce.store.layout import PixelsName
from decodeonce.store.pixels import ALL, Pixels, Yuv420

NPY_MAGIC = b"\x93NUMPY\x01\x00"


def npy_header(shape: tuple[int, ...], descr: str, *, size: int = 128) -> bytes:
    """Return the npy v1.0 header of a C-order array, padded with spaces to `size` bytes (a multiple of 64)."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(map(int, shape))}, }}"
    length = size - len(NPY_MAGIC) - 2
    if len(text) + 1 > length:
        raise ValueError(f"a header of {len(text)} characters does not fit in {size} bytes")
    return NPY_MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode("ascii") + b"\n"


class NpyContainer:
    """Shards as .npy files: a header page, then the rows. `numpy.load(path, mmap_mode="r")` can read them.

    Attributes:
        suffix: End of a shard's file name.
        magic: First bytes of every shard.
    """

    suffix = ".npy"
    magic = NPY_MAGIC

    def head(self, shape: tuple[int, ...], *, size: int, scratch: Path) -> bytes:
        """Return the header of a shard with `shape` (rows, H, W, C): the `size` bytes before its first row."""
        return npy_header(shape, "|u1", size=size)


class Hdf5Container:
    """Shards as HDF5 files: one page of metadata, then the contiguous rows. Plain h5py can read them."""

    suffix = ".h5"
    magic = b"\x89HDF\r\n\x1a\n"

    def head(self, shape: tuple[int, ...], *, size: int, scratch: Path) -> bytes:
        """Return the `size` bytes before the first row, copied from a sparse file that libhdf5 writes in `scratch`.

        libver "earliest" puts superblock, group and dataset header (1,090 bytes) before the data. A metadata block of
        `size` bytes and the alignment make the data begin at byte `size`. The code checks that no metadata follows it.
        """
        import tempfile

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


Container = NpyContainer | Hdf5Container
CONTAINERS: dict[str, Container] = {"npy": NpyContainer(), "hdf5": Hdf5Container()}


class Codec(Protocol):
    """Packs an image into the bytes of a row, and unpacks them."""

    def pack(self, image: Any) -> bytes:
        """Return the bytes of an image of Pillow in mode RGB or RGBX."""
        ...

    def unpack(self, rows: Pixels, shape: tuple[int, ...], lines: slice = ALL, out: Pixels | None = None) -> Pixels:
        """Return `lines` of the images of `shape` (H, W, C) in `rows` (..., bytes), in `out` if it is given."""
        ...


class Rgb:
    """The pixels line by line, each with its channels."""

    def pack(self, image: Any) -> bytes:
        """Return the bytes of an image, line by line."""
        pixels: bytes = image.tobytes("raw", "RGB")
        return pixels

    def unpack(self, rows: Pixels, shape: tuple[int, ...], lines: slice = ALL, out: Pixels | None = None) -> Pixels:
        """Return views, unless `out` is given."""
        images = rows.reshape(*rows.shape[:-1], *shape)[..., lines, :, :]
        if out is None:
            return images
        out[...] = images
        return out


CODECS: dict[PixelsName, Codec] = {"rgb": Rgb(), "yuv420": Yuv420(), "bc4": Bc4()}
