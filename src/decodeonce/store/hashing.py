"""The one hash of a store, xxh3_64: of rows, small files and manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

from decodeonce.store.regular_files import reading

# Of more at a time xxhash (4.1) releases the interpreter lock, which a thread that runs Python gives back only after
# 5 ms: next to one that never waits, 600 rows of 192 KiB were hashed a second in one piece each, 114,000 in pieces
# (alone 376,000 and 253,000).
HASHED_AT_ONCE = 64 << 10

row_checksum = xxhash.xxh3_64_intdigest


def first_wrong_row(rows: memoryview, row_bytes: int, checksums: Iterable[int]) -> int | None:
    """The number, from 0, of the first of consecutive `rows` that has another checksum than the one expected."""
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
    """xxh3_64 as 16 hexadecimal digits, as manifests and TSV files write it."""
    return xxhash.xxh3_64_hexdigest(data)


def file_chunks(path: Path, size: int = 1 << 22) -> Iterator[bytes]:
    """The bytes of a file in pieces of `size`."""
    with reading(path) as file:
        while chunk := file.read(size):
            yield chunk


def file_hexdigest(chunks: Iterable[bytes]) -> str:
    """`hexdigest` of bytes that come in pieces."""
    state = xxhash.xxh3_64()
    for chunk in chunks:
        state.update(chunk)
    return state.hexdigest()
