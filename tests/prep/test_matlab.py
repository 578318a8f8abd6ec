"""The reader of MATLAB files, beside scipy's."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from decodeonce.prep.sources.formats.matlab import MOST_BYTES, read_structs

FIELDS = ("number", "text", "other")


def mat(rows: list[tuple[Any, ...]], *, compressed: bool) -> bytes:
    """A file with a struct array `rows`, behind other things, whose sizes when compressed are any."""
    structs = np.empty((len(rows), 1), [(name, object) for name in FIELDS])
    for row, values in enumerate(rows):
        structs[row, 0] = values
    out = io.BytesIO()
    before = {f"before{size}": np.arange(float(size)) for size in range(6)}
    savemat(out, {**before, "rows": structs}, do_compression=compressed)
    return out.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
def test_numbers_and_texts_are_scipys(compressed: bool) -> None:
    numbers = [np.uint8(3), np.int16(-4), 5.0, np.float32(6), np.int64(2**40), np.uint32(7)]
    texts = ["n01440764", "tench, Tinca tinca", "é, ü", "四", "", "x" * 9]
    data = mat([(n, t, np.arange(3)) for n, t in zip(numbers, texts, strict=True)], compressed=compressed)
    rows = read_structs(data, "rows")
    theirs = loadmat(io.BytesIO(data), squeeze_me=True)["rows"]
    assert rows is not None
    assert [row["number"] for row in rows] == [int(row["number"]) for row in theirs]
    assert [row["text"] for row in rows] == texts == [str(t) if np.size(t) else "" for t in theirs["text"]]
    assert {row["other"] for row in rows} == {None}


def test_what_is_not_there_is_none_and_half_a_file_is_refused() -> None:
    for compressed in (False, True):
        data = mat([(1, "a", 2)], compressed=compressed)
        assert read_structs(data, "columns") is None
        assert read_structs(data, "before3") is None
        for size in (0, 100, 130, *range(len(data) - 99, len(data) - 8)):
            with pytest.raises(ValueError, match=r"no header of MATLAB 5|an element of|cut short"):
                read_structs(data[:size], "rows")


def test_what_unpacks_to_more_than_any_list_of_classes_is_refused() -> None:
    content = zlib.compress(bytes(MOST_BYTES + 1))
    with pytest.raises(ValueError, match=f"more than {MOST_BYTES} bytes"):
        read_structs(bytes(124) + b"\0\1IM" + struct.pack("<II", 15, len(content)) + content, "rows")


def test_a_file_of_the_other_byte_order() -> None:
    def element(kind: int, content: bytes) -> bytes:
        return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)

    def matrix(of: int, *parts: bytes, name: bytes = b"", sizes: tuple[int, ...] = (1, 1)) -> bytes:
        head = element(6, struct.pack(">II", of, 0)) + element(5, struct.pack(f">{len(sizes)}i", *sizes))
        return element(14, head + element(1, name) + b"".join(parts))

    fields = element(5, struct.pack(">i", 8)) + element(1, b"number\0\0text\0\0\0\0")
    text = matrix(4, element(17, "aé".encode("utf-16-be")), sizes=(1, 2))
    number = matrix(6, struct.pack(">HHBxxx", 1, 2, 7))  # a small element: its size and type in four bytes
    data = bytes(124) + b"\1\0MI" + matrix(2, fields, number, text, name=b"rows")
    assert read_structs(data, "rows") == [{"number": 7, "text": "aé"}]
    with pytest.raises(ValueError, match="2 values, expected 4"):
        read_structs(bytes(124) + b"\1\0MI" + matrix(2, fields, number, text, name=b"rows", sizes=(2, 1)), "rows")
