"""The TSV files: every file name round-trips, and every line stays one line of UTF-8."""

import os
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.errors import StoreError
from decodeonce.store.table import (
    REJECT_COLUMNS,
    SAMPLE_COLUMNS,
    Reject,
    Sample,
    Samples,
    escape,
    fields,
    line,
    read_rejects,
    reject_line,
    sample_lines,
    unescape,
)

HOSTILE = ["", "a\tb", "a\nb", "a\r\nb", "back\\slash", "\\", "\\\\", "\\t", "\\x80", "n01440764\\"]
HOSTILE += map(os.fsdecode, [b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\x80\\x80\x80"])
HOSTILE += [
    "caf\u00e9 \u65e5\u672c\u8a9e \U0001f600",
    "\u2028\u0085\x0b\x0c\x1c\x00",
    "\ufeffbom",
    " \"quoted\", 'twice' ",
]
NAMES = st.binary(max_size=20).map(os.fsdecode) | st.text(max_size=20) | st.sampled_from(HOSTILE)


def test_escapes() -> None:
    escaped = {"a\tb\nc\rd\\e": r"a\tb\nc\rd\\e", os.fsdecode(b"caf\xe9"): r"caf\xe9", "caf\u00e9": "caf\u00e9"}
    escaped |= {r"\x80": r"\\x80", r"\t": r"\\t"}
    for text, field in escaped.items():
        assert (escape(text), unescape(field)) == (field, text)
    for field in (r"\q", r"\x41", r"\x7f", r"\xFF", r"\x8", "trailing\\"):
        assert unescape(field) == field  # unknown escapes are kept


@given(st.lists(NAMES, min_size=1, max_size=6))
def test_line_is_one_utf8_line_and_round_trips(texts: list[str]) -> None:
    encoded = line(texts)
    assert fields(encoded) == texts
    assert encoded.decode("utf-8").endswith("\n")
    assert (encoded.count(b"\n"), encoded.count(b"\t"), encoded.count(b"\r")) == (1, len(texts) - 1, 0)


def samples_named(names: Sequence[str]) -> list[Sample]:
    return [Sample(row, 0, name, f"{row}/{name}", 1, 2, "", f"{row:016x}") for row, name in enumerate(names)]


def write_samples(path: Path, samples: Sequence[Sample]) -> Path:
    path.write_bytes(line(SAMPLE_COLUMNS) + sample_lines(map(astuple, samples)))
    return path


def test_hostile_names_round_trip_in_files(tmp_path: Path) -> None:
    expected = samples_named(HOSTILE)
    samples = Samples(write_samples(tmp_path / "samples.tsv", expected), len(expected))
    assert list(samples) == samples[:] == expected
    rejects = [Reject(name, f"why\t{name}", "rejected") for name in HOSTILE]
    (tmp_path / "rejects.tsv").write_bytes(line(REJECT_COLUMNS) + b"".join(map(reject_line, rejects)))
    assert list(read_rejects(tmp_path / "rejects.tsv")) == rejects


def test_file_larger_than_one_read(tmp_path: Path) -> None:
    expected = samples_named([str(row) * (1 << 20) for row in range(10)] * 2)  # 40 MB, read 16 MiB at a time
    samples = Samples(write_samples(tmp_path / "samples.tsv", expected), len(expected))
    for row in (19, 8, 7, 0):
        assert samples[row] == expected[row]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (b"\n1\t0", b"\n1\tx", "the line of row 1 is not a valid sample;"),
        (b"\n1\t0", b"\n7\t0", "found row 7, expected 1"),
        (b"1/b", b"1/\xff", "the line of row 1 is not a valid sample;"),
        (b"1/b", b"1/\t", "the line of row 1 is not a valid sample;"),
    ],
    ids=["not a number", "wrong row", "not UTF-8", "extra field"],
)
def test_damaged_line_is_named(tmp_path: Path, old: bytes, new: bytes, found: str) -> None:
    path = write_samples(tmp_path / "samples.tsv", samples_named(["a", "b", "c"]))
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    samples = Samples(path, 3)
    assert samples[0].class_name == "a"
    for read in (lambda: samples[1], lambda: list(samples)):
        with pytest.raises(StoreError, match=r"samples\.tsv: .*run `prep verify .*`$") as caught:
            read()
        assert found in str(caught.value)


@pytest.mark.parametrize("count", [2, 4])
def test_wrong_number_of_lines_is_refused(tmp_path: Path, count: int) -> None:
    path = write_samples(tmp_path / "samples.tsv", samples_named(["a", "b", "c"]))
    for read in (lambda s: s[0], list):
        with pytest.raises(StoreError, match=rf"samples\.tsv: 3 samples, expected {count}"):
            read(Samples(path, count))


@pytest.mark.parametrize("content", [b"one\n", b"a\tb\tc\td\n", b"a\xff\tb\tc\n", b"\n", b"half"])
def test_invalid_reject_line_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rejects.tsv"
    path.write_bytes(line(REJECT_COLUMNS) + line(["a.jpg", "broken", "rejected"]) + content)
    with pytest.raises(StoreError, match=r"rejects.tsv: line 3 is not a valid reject; run `prep verify .*`$"):
        list(read_rejects(path))
