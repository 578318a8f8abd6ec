"""npy files: v1.0 headers whose bytes do not depend on NumPy's version, and the npy container."""

from __future__ import annotations

from pathlib import Path

MAGIC = b"\x93NUMPY\x01\x00"


def npy_header(shape: tuple[int, ...], descr: str, *, size: int = 128) -> bytes:
    """Return the npy v1.0 header of a C-order array, padded with spaces to `size` bytes (a multiple of 64)."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(map(int, shape))}, }}"
    length = size - len(MAGIC) - 2
    if len(text) + 1 > length:
        raise ValueError(f"a header of {len(text)} characters does not fit in {size} bytes")
    return MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode("ascii") + b"\n"


class NpyContainer:
    """Shards as .npy files: a header page, then the rows. `numpy.load(path, mmap_mode="r")` can read them."""

    suffix = ".npy"
    magic = MAGIC

    def head(self, shape: tuple[int, int, int, int], *, size: int, scratch: Path) -> bytes:
        """Return the header of a shard with `shape` (rows, H, W, C): the `size` bytes before its first row."""
        return npy_header(shape, "|u1", size=size)
