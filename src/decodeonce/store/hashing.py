"""xxh3_64, the hash of rows, small files and manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

from decodeonce.store.regular_files import reading

# For larger inputs xxhash (4.1) releases the interpreter lock, and a thread that runs Python gives it back only after
# 5 ms. Next to a thread that never waits, 600 rows of 192 KiB were hashed per second in one piece each, and 114,000 in
# pieces of this size (without the other thread: 376,000 and 253,000).
HASHED_AT_ONCE = 64 << 10

row_checksum = xxhash.xxh3_64_intdigest


def first_wrong_row(rows: memoryview, row_bytes: int, checksums: Iterable[int]) -> int | None:
    """Return the index of the first of consecutive `rows` whose checksum differs from the expected one."""
    state = xxhash.xxh3_64()
    for index, expected in enumerate(checksums):
        row = rows[index * row_bytes : (index + 1) * row_bytes]
        for start in range(0, row_bytes, HASHED_AT_ONCE):
            state.update(row[start : start + HASHED_AT_ONCE])
        if state.intdigest() != expected:
            return index
        state.reset()
    return None


def hexdigest(data: bytes | memoryview) -> str:
    """Hash `data` and return 16 hexadecimal digits, the form that manifests and TSV files use."""
    return xxhash.xxh3_64_hexdigest(data)


def file_chunks(path: Path, size: int = 1 << 22) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of `size`."""
    with reading(path) as file:
        while chunk := file.read(size):
            yield chunk


def file_hexdigest(chunks: Iterable[bytes]) -> str:
    """Hash a file that is given in chunks and return 16 hexadecimal digits."""
    state = xxhash.xxh3_64()
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()
