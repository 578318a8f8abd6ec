"""The one hash of a store, xxh3_64: of rows, small files and manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

from decodeonce.store.regular_files import reading

row_checksum = xxhash.xxh3_64_intdigest


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
