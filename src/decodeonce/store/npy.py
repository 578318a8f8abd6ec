"""The npy files of a store: v1.0 headers whose bytes do not depend on numpy's version, and the npy container."""

from __future__ import annotations

from pathlib import Path

from decodeonce.errors import StoreError
from decodeonce.store.layout import repair_advice

MAGIC = b"\x93NUMPY\x01\x00"


def npy_header(shape: tuple[int, ...], descr: str, *, size: int = 128) -> bytes:
    """The npy v1.0 header of a C-order array, padded with blanks to exactly `size` bytes (a multiple of 64)."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(map(int, shape))}, }}"
    room = size - len(MAGIC) - 2
    if len(text) + 1 > room:
        raise ValueError(f"a header of {len(text)} characters does not fit in {size} bytes")
    return MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1).encode("ascii") + b"\n"


class NpyContainer:
    """Shards as .npy files: a header page, then the rows; `numpy.load(path, mmap_mode="r")` reads one."""

    name = "npy"
    suffix = ".npy"

    def head(self, shape: tuple[int, int, int, int], *, size: int, scratch: Path) -> bytes:
        """The `size` bytes before the first row of a shard of `shape` (rows, H, W, C)."""
        return npy_header(shape, "|u1", size=size)

    def check_magic(self, path: Path, head: bytes) -> None:
        """Raise StoreError unless `head` begins as this container's files do."""
        if not head.startswith(MAGIC):
            raise StoreError(f"{path}: does not begin as an npy file (v1.0) does; {repair_advice(path)}")
