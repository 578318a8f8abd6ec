"""Hash functions: xxh3_64 of rows and small files, JSON that is signed with it, and `mix` for shuffled orders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store.files import reading
from decodeonce.store.layout import Json

# For larger inputs xxhash (4.1) releases the interpreter lock, and a thread that runs Python gives it back only after
# 5 ms. Next to a thread that never waits, 600 rows of 192 KiB were hashed per second in one piece each, and 114,000 in
# pieces of this size (without the other thread: 376,000 and 253,000).
HASHED_AT_ONCE = 64 << 10

MAX_SIGNED_BYTES = 64 << 20  # limit for reading a file into memory; 200,000 shards and 100,000 classes take 45 MB

# The numbers of splitmix64, from Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
FACTOR_1, FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
GOLDEN = 0x9E3779B97F4A7C15


def signed(word: int) -> int:
    """The int64 that has the same 64 bits as a word, or as its last 64 bits."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


row_checksum = xxhash.xxh3_64_intdigest


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix each 64-bit word with the finaliser of splitmix64. It is a bijection, so different words stay different.

    Every shuffled order is derived from it: the rows of a plan and the rows of an epoch.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(FACTOR_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(FACTOR_2)
    mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed


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


def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of 4 MiB."""
    with reading(path) as file:
        while chunk := file.read(1 << 22):
            yield chunk


def file_hexdigest(path: Path) -> str:
    """Hash a file and return 16 hexadecimal digits."""
    state = xxhash.xxh3_64()
    for chunk in file_chunks(path):
        state.update(chunk)
    return state.hexdigest()


def canonical(facts: Mapping[str, object]) -> bytes:
    """Serialize facts the only way that readers accept: sorted keys, one space of indent per level, UTF-8, a newline.

    Bytes of names that are not valid UTF-8, which are lone surrogates here, become escapes \\udcNN.
    """
    text = json.dumps(facts, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def digest_of(facts: Mapping[str, object]) -> str:
    """Hash the canonical form of all facts except the digest itself."""
    return hexdigest(canonical({key: value for key, value in facts.items() if key != "digest"}))


def sign(facts: Mapping[str, object]) -> bytes:
    """Serialize the facts together with their digest."""
    return canonical({**facts, "digest": digest_of(facts)})


def parse_signed(encoded: bytes, path: Path, *, form: str, versions: Sequence[int], advice: str) -> Json:
    """Return the facts of a signed file. Raise StoreError, which ends with `advice`, if it is anything else.

    "format" must be `form`, and "version" one of `versions`.
    """
    try:
        facts = json.loads(encoded)
        as_signed = isinstance(facts, dict) and canonical(facts) == encoded and facts.get("digest") == digest_of(facts)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON ({error}); {advice}") from None
    if not isinstance(facts, dict) or facts.get("format") != form:
        raise StoreError(f'{path}: not a {form} file: "format" is not "{form}"; {advice}')
    found = facts.get("version")
    if type(found) is not int or found not in versions:
        raise _other_version(path, found, versions, advice)
    if not as_signed:
        raise StoreError(f"{path}: damaged: its contents do not match its digest; {advice}")
    return facts


def _other_version(path: Path, found: object, versions: Sequence[int], advice: str) -> StoreError:
    *others, last = map(str, versions)
    known = f"{', '.join(others)} and {last}" if others else last
    what = f"format version {found!r}, this decodeonce reads {known}"
    return StoreError(f"{path}: {what}; install a newer decodeonce, or {advice}")
