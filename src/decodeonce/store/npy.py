"""The npy files of a store: v1.0 headers whose bytes do not depend on NumPy's version, and the npy container."""

from __future__ import annotations

from pathlib import Path

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

    suffix = ".npy"
    magic = MAGIC

    def head(self, shape: tuple[int, int, int, int], *, size: int, scratch: Path) -> bytes:
        """The `size` bytes before the first row of a shard of `shape` (rows, H, W, C)."""
        return npy_header(shape, "|u1", size=size)
