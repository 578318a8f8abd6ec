"""A struct array out of a MATLAB 5 file: whole numbers and texts, which is what meta.mat has of use.

By "MATLAB Level 5 MAT-File Format" of The MathWorks. A tag is never believed past the bytes that are there.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from itertools import islice

HEADER = 128
ORDERS = {b"IM": "<", b"MI": ">"}
MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
STRUCTS, CHARACTERS, NUMERIC = 2, 4, range(6, 16)  # classes of arrays
MOST_BYTES = 16 << 20  # unpacked; ILSVRC2012's has some 2 MB
Row = dict[str, int | str | None]


def read_structs(data: bytes, name: str) -> list[Row] | None:
    """The elements of the struct array `name`, None where there is none; fields of other kinds are None.

    ValueError where the file is damaged, or none of MATLAB 5.
    """
    order = ORDERS.get(data[HEADER - 2 : HEADER])
    if order is None:
        raise ValueError("no header of MATLAB 5")
    for kind, content in _elements(data[HEADER:], order):
        if kind == COMPRESSED:
            kind, content = next(_elements(_unpacked(content), order), (0, b""))
        if kind == MATRIX and (rows := _structs(content, name, order)) is not None:
            return rows
    return None


def _structs(content: bytes, name: str, order: str) -> list[Row] | None:
    parts = _elements(content, order)
    flags, sizes, called, width, names = ([part for _, part in islice(parts, 5)] + [b""] * 5)[:5]
    if _class(flags, order) != STRUCTS or called.decode("latin-1") != name:
        return None
    length = int.from_bytes(width[:4], "little" if order == "<" else "big") or 1
    fields = [names[at : at + length].partition(b"\0")[0].decode("latin-1") for at in range(0, len(names), length)]
    count = math.prod(struct.unpack(f"{order}{len(sizes) // 4}i", sizes[: len(sizes) // 4 * 4]))
    if not 0 < count * len(fields) <= len(content):  # each takes eight bytes at least
        raise ValueError(f"{count} elements of {len(fields)} fields in {len(content)} bytes")
    values = [_value(part, order) for kind, part in parts if kind == MATRIX]
    if len(values) != count * len(fields):
        raise ValueError(f"{len(values)} values, expected {count * len(fields)}")
    return [dict(zip(fields, values[at : at + len(fields)], strict=True)) for at in range(0, len(values), len(fields))]


def _value(content: bytes, order: str) -> int | str | None:
    """A text, or a whole number that stands alone."""
    parts = [*islice(_elements(content, order), 4)]
    if not parts:
        return None
    of, (kind, values) = _class(parts[0][1], order), parts[3] if len(parts) == 4 else (2, b"")
    if of == CHARACTERS and kind in TEXTS:
        wide = TEXTS[kind] + ("" if kind in (1, 2, 16) else {"<": "-le", ">": "-be"}[order])
        return values.decode(wide)
    if of in NUMERIC and kind in NUMBERS and len(values) == struct.calcsize(NUMBERS[kind]):
        [number] = struct.unpack(order + NUMBERS[kind], values)
        return int(number) if number == number // 1 else None
    return None


def _class(flags: bytes, order: str) -> int:
    return int(struct.unpack(f"{order}II", flags)[0] & 0xFF) if len(flags) == 8 else 0


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Type and content of the elements that follow each other; ValueError where one ends behind the data."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if small := kind >> 16:  # its size and type share four bytes, and the next four hold the content
            kind, size, start, after = kind & 0xFFFF, small, at + 4, at + 8
        else:
            start, after = at + 8, at + 8 + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > min(after, len(data)):
            raise ValueError(f"an element of {size} bytes at byte {start}")
        yield kind, data[start : start + size]
        at = after
    if at < len(data):
        raise ValueError(f"an element of {len(data) - at} bytes at byte {at}")


def _unpacked(content: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(content, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof:
        raise ValueError(f"a compressed element that is cut short, or has more than {MOST_BYTES} bytes")
    return data
