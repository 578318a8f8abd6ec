"""What the bytes of a shard mean: a container's header, then rows, each of which a codec packs.

In every container the rows are contiguous from `data_offset`. To add one, write a class like `NpyContainer`, and extend
`Container` and `CONTAINERS`. Only a codec knows where the pixels of a row lie. Everything else asks the manifest for
arrays, and gets RGB (H, W, 3).
"""

from __future__ import annotations

import errno
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store.layout import PixelsName

NPY_MAGIC = b"\x93NUMPY\x01\x00"
Pixels = NDArray[np.uint8]
ALL = slice(None)


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


class Yuv420:
    """Planes Y, U and V, as I420 of OpenCV and FFmpeg: U and V have half the height and width of the image.

    The values are those of JFIF: BT.601, 0..255. docs/reference/format.md defines them.
    """

    def pack(self, image: Any) -> bytes:
        """Return the planes of an image of even height and width."""
        # Exact, because all numbers are multiples of 2**-16 below 256. convert("L") of pillow-simd rounds a pixel in a
        # thousand differently, and convert("YCbCr") truncates.
        image = image.convert("RGB")
        small = image.reduce(2)  # means of four pixels
        planes = image.convert("L", _Y), small.convert("L", _U), small.convert("L", _V)
        return b"".join(plane.tobytes() for plane in planes)

    def unpack(self, rows: Pixels, shape: tuple[int, ...], lines: slice = ALL, out: Pixels | None = None) -> Pixels:
        """Return new images, in which four pixels share U and V."""
        numbers = np.arange(shape[0])[lines]
        if out is None:
            out = np.empty((*rows.shape[:-1], len(numbers), *shape[1:]), np.uint8)
        # One image at a time stays in the cache of a processor.
        count = math.prod(rows.shape[:-1])
        images = out.reshape(count, *out.shape[-3:])
        for row, image in zip(rows.reshape(count, rows.shape[-1]), images, strict=True):
            _unpack(row, shape, numbers, image)
        return out


# Factors of R, G and B, and a number to add before 0.5 is added and the fraction is dropped.
_Y = (19595 / 2**16, 38470 / 2**16, 7471 / 2**16, 0)
_U = (-5529 / 2**15, -10855 / 2**15, 16384 / 2**15, 128 - 2**-15)
_V = (16384 / 2**15, -13720 / 2**15, -2664 / 2**15, 128 - 2**-15)


def _unpack(row: Pixels, shape: tuple[int, ...], numbers: NDArray[np.intp], out: Pixels) -> None:
    height, width, _ = shape
    luma = row[: height * width].reshape(height, width)[numbers].astype(np.int16)
    u, v = row[height * width :].reshape(2, height // 2, width // 2).astype(np.int16) - np.int16(128)
    for channel, more in enumerate((v * 90 + 32, u * -22 + v * -46 + 32, u * 113 + 32)):
        # Repeat each number: as the halves of a number of twice the size.
        repeated = ((more >> 6).view(np.uint16).astype(np.uint32) * 0x10001).view(np.int16)
        level = luma + repeated[numbers // 2]
        out[..., channel] = np.clip(level, 0, 255, out=level)


CODECS: dict[PixelsName, Codec] = {"rgb": Rgb(), "yuv420": Yuv420()}
