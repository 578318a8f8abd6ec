"""Parquet tables: which columns are read, whose names the classes have, and what is said of tables that are wrong."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.entry import Undecodable
from decodeonce.prep.sources import ParquetSource, open_parquet, open_source
from decodeonce.prep.sources.formats import tables
from decodeonce.prep.sources.formats.tables import read_error
from tests.forms.parquet import images, write_table
from tests.images import jpeg

PICTURES = [jpeg(20, 10, seed=seed) for seed in range(5)]
IMAGES = images([(data, f"{k}.jpg") for k, data in enumerate(PICTURES)])
TEXTS = ["dog", "cat", "cat", "dog", "ape"]


def table(root: Path, columns: dict[str, Any], **options: Any) -> Path:
    return write_table(root / "a.parquet", columns, **options)


def labels(source: ParquetSource) -> list[str]:
    return [source.classes()[entry.label].name for entry in source.entries()]


@pytest.mark.parametrize(
    ("label", "names", "expected"),
    [
        (pa.array([1, 0, 0, 1, 2]), ["ape", "cow", "dog", "emu"], ["cow", "ape", "ape", "cow", "dog"]),
        (pa.array([1, 0, 0, 1, 2], pa.int8()), None, ["1", "0", "0", "1", "2"]),
        (pa.array(TEXTS), None, TEXTS),
        (pa.array(TEXTS, pa.large_string()), None, TEXTS),
        (pa.array(TEXTS).dictionary_encode(), None, TEXTS),
        (pa.array(["3", "1", "0", "1", "1"]), None, ["3", "1", "0", "1", "1"]),
    ],
)
def test_labels_are_numbers_or_names(tmp_path: Path, label: Any, names: list[str] | None, expected: list[str]) -> None:
    source = open_parquet(table(tmp_path, {"image": IMAGES, "label": label}, names=names))
    assert labels(source) == expected
    made = open_source(source.kind, source.root, json.loads(json.dumps(source.facts())))
    assert [made.read(entry) for entry in source.entries()] == PICTURES


def test_a_class_list_goes_before_the_tables_names(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": IMAGES, "label": [1, 0, 0, 1, 1]}, names=["a", "b"])
    assert labels(open_parquet(path, classes=["x", "y"])) == ["y", "x", "x", "y", "y"]
    with pytest.raises(BuildError, match=r"a\.parquet: label 1, expected 0 to 0; the class list has 1 names"):
        list(open_parquet(path, classes=["x"]).entries())


def test_classes_without_pictures_are_told(tmp_path: Path) -> None:
    source = open_parquet(table(tmp_path, {"image": IMAGES, "label": [1] * 5}, names=["a", "b"]))
    list(source.entries())
    assert source.doubts(1000) == ["1 of 2 classes have no picture; the first is 0, 'a'"]


@pytest.mark.parametrize("metadata", [{}, {"huggingface": "{"}, {"huggingface": '{"info": {"features": {}}}'}])
def test_metadata_without_names_leaves_numbers(tmp_path: Path, metadata: dict[str, str]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": IMAGES, "label": [0, 1, 1, 0, 2]}).replace_schema_metadata(metadata), path)
    assert labels(open_parquet(path)) == ["0", "1", "1", "0", "2"]


def test_names_may_stand_by_their_numbers(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": {"0": "a", "1": "b", "2": "c"}, "_type": "ClassLabel"}}}}
    path = tmp_path / "a.parquet"
    whole = pa.table({"image": IMAGES, "label": [0, 1, 1, 0, 2]})
    pq.write_table(whole.replace_schema_metadata({"huggingface": json.dumps(features)}), path)
    assert labels(open_parquet(path)) == ["a", "b", "b", "a", "c"]


def test_rows_are_named_by_file_row_and_path(tmp_path: Path) -> None:
    for name in ("a/t-0.parquet", "b/t-0.parquet"):
        write_table(tmp_path / name, {"image": IMAGES, "label": [0] * 5}, group=2)
    source = open_parquet(tmp_path)
    entries = list(source.entries())
    assert [entry.text for entry in entries[:2]] == ["a/t-0.parquet/0/0.jpg", "a/t-0.parquet/1/1.jpg"]
    assert entries[-1].text == "b/t-0.parquet/4/4.jpg"
    assert [(entry.unit, entry.place) for entry in entries[3:8]] == [(1, 1), (2, 0), (3, 0), (3, 1), (4, 0)]
    assert {entry.size for entry in entries} == {0}
    assert source.found == "2 Parquet files, pictures from image.bytes, labels from label"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.struct([("bytes", pa.large_binary())])])
def test_pictures_may_be_plain_bytes(tmp_path: Path, kind: Any) -> None:
    data = [{"bytes": data} for data in PICTURES] if pa.types.is_struct(kind) else PICTURES
    source = open_parquet(table(tmp_path, {"jpg": pa.array(data, kind), "cls": TEXTS}))
    entries = list(source.entries())
    assert [entry.text for entry in entries] == [f"a.parquet/{row}" for row in range(5)]
    assert [source.read(entry) for entry in entries] == PICTURES


@pytest.mark.parametrize("statistics", [True, False])
def test_rows_without_picture_or_label_are_no_rows(tmp_path: Path, statistics: bool) -> None:
    pictures = images([(PICTURES[0], None), None, (None, "elsewhere.jpg"), (PICTURES[3], "3.jpg"), (PICTURES[4], "")])
    path = table(tmp_path, {"image": pictures, "label": [0, 1, 1, None, -1]}, group=5, write_statistics=statistics)
    source = open_parquet(path)
    entries = list(source.entries())
    missing = tables.NO_BYTES if statistics else ""
    assert [entry.problem for entry in entries] == ["", missing, missing, "no label", "label -1, expected 0 or more"]
    assert source.read(entries[0]) == PICTURES[0]
    with pytest.raises(Undecodable, match="not in the table"):
        source.read(entries[2])


def test_a_table_that_only_refers_to_files_has_no_rows(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": images([(None, f"{k}.jpg") for k in range(4)]), "label": [0] * 4})
    assert [entry.problem for entry in open_parquet(path).entries()] == [tables.NO_BYTES] * 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"x": [1], "label": [0]},
            r"no column is plainly the pictures; .*--picture-column; there are x \(int64\), lab",
        ),
        ({"a": [b"x"], "b": [b"x"], "label": [0]}, "no column is plainly the pictures"),
        ({"img": [b"x"], "jpg": [b"x"], "label": [0]}, "img and jpg may each be the pictures"),
        ({"image": [b"x"], "label": [0], "class": ["a"]}, "label and class may each be the labels; .*--label-column"),
        ({"image": [b"x"], "caption": ["a"]}, "no column is plainly the labels"),
        ({"image": [b"x"], "label": [0.5]}, "no column is plainly the labels"),
    ],
)
def test_columns_that_are_not_plain_are_listed(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=r"a\.parquet: " + message):
        open_parquet(table(tmp_path, columns))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"picture_column": "nope"},
            r"--picture-column nope is not there; there are image \(struct.*\), label \(string\)",
        ),
        ({"label_column": "nope"}, r"--label-column nope is not there; there are image"),
        ({"picture_column": "label"}, r"--picture-column label cannot be the pictures, expected binary, or a struct"),
        ({"label_column": "image"}, r"--label-column image cannot be the labels, expected integers or strings; there"),
    ],
)
def test_a_named_column_that_is_none_is_told(tmp_path: Path, named: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=r"a\.parquet: " + message):
        open_parquet(table(tmp_path, {"image": IMAGES, "label": TEXTS}), **named)


@pytest.mark.skipif(not hasattr(pa, "binary_view"), reason="a pyarrow without views")
@pytest.mark.parametrize("inside", [False, True])
def test_views_are_read_as_binary_and_strings(tmp_path: Path, inside: bool) -> None:
    pictures = pa.array(PICTURES, pa.binary_view())
    image = pa.StructArray.from_arrays([pictures], ["bytes"]) if inside else pictures
    source = open_parquet(table(tmp_path, {"image": image, "label": pa.array(TEXTS, pa.string_view())}, group=5))
    assert labels(source) == TEXTS
    assert [source.read(entry) for entry in source.entries()] == PICTURES


def test_classes_that_the_schema_names_are_classes(tmp_path: Path) -> None:
    for names, told in ((list("abcde"), []), (None, ["5 different labels on 5 samples: are they classes?"])):
        source = open_parquet(table(tmp_path, {"image": IMAGES, "label": [0, 1, 2, 3, 4]}, names=names))
        assert source.doubts(len(list(source.entries()))) == told
    assert source.found == "1 Parquet file (a.parquet), pictures from image.bytes, labels from label"


def test_columns_can_be_named(tmp_path: Path) -> None:
    columns = {"mask": IMAGES, "photo": IMAGES, "fine": TEXTS, "coarse": ["pet"] * 5}
    source = open_parquet(table(tmp_path, columns), picture_column="photo", label_column="fine")
    assert labels(source) == TEXTS
    assert "photo.bytes" in source.found


def test_one_of_many_pictures_is_taken_by_its_name(tmp_path: Path) -> None:
    source = open_parquet(table(tmp_path, {"mask": IMAGES, "image": IMAGES, "label": TEXTS}))
    assert "image.bytes" in source.found


@pytest.mark.parametrize(
    ("second", "lacking"),
    [({"image": IMAGES, "class": [0] * 5}, "label"), ({"image": PICTURES, "label": [0] * 5}, r"image\.bytes")],
)
def test_files_have_the_columns_of_the_first(tmp_path: Path, second: dict[str, Any], lacking: str) -> None:
    write_table(tmp_path / "t-0.parquet", {"image": IMAGES, "label": [0] * 5})
    write_table(tmp_path / "t-1.parquet", second)
    with pytest.raises(BuildError, match=rf"t-1\.parquet: no column {lacking}, which the first file has"):
        list(open_parquet(tmp_path).entries())


def test_files_have_the_classes_of_the_first(tmp_path: Path) -> None:
    for number, names in enumerate(["ab", "ba"]):
        write_table(tmp_path / f"t-{number}.parquet", {"image": IMAGES, "label": [0] * 5}, names=list(names))
    with pytest.raises(BuildError, match=r"t-1\.parquet: its classes are others"):
        list(open_parquet(tmp_path).entries())


def test_several_splits_are_not_mixed(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_table(tmp_path / f"data/{split}-00000-of-00001.parquet", {"image": IMAGES, "label": [0] * 5})
    with pytest.raises(BuildError, match="several splits"):
        open_parquet(tmp_path)
    assert len(list(open_parquet(f"{tmp_path}/data/train-*").entries())) == 5
    assert len(list(open_parquet(f"{tmp_path}/data/{{train,test}}-*.parquet").entries())) == 10


def test_what_is_no_parquet_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"picture" * 10)
    with pytest.raises(BuildError, match=r"a\.parquet: Parquet magic bytes not found.*; expected a whole Parquet file"):
        open_parquet(tmp_path / "a.parquet")


def test_damaged_pages_are_told_with_their_row_group(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": IMAGES, "label": [0] * 5})
    source = open_parquet(path)
    entries = list(source.entries())
    facts, data = path.stat(), bytearray(path.read_bytes())
    leaf = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = leaf.dictionary_page_offset or leaf.data_page_offset
    data[start : start + 40] = bytes(40)
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert source.read(entries[0]) == PICTURES[0]
    with pytest.raises(BuildError, match=r"a\.parquet: row group 1: .*; expected a whole Parquet file"):
        source.read(entries[4])


def test_a_passing_error_of_the_file_system_stops_the_task() -> None:
    assert isinstance(read_error("a.parquet", OSError(5, "Input/output error")), Stopped)


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BuildError, match=r'pip install "decodeonce\[parquet\]"'):
        tables.pyarrow()


def test_one_row_group_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_parquet(table(tmp_path, {"image": IMAGES, "label": TEXTS}, group=2))
    entries = list(source.entries())
    asked: list[tuple[int, list[str]]] = []
    read_group = tables.read_group

    def counted(path: str, table: Any, group: int, columns: list[str]) -> Any:
        asked.append((group, columns))
        return read_group(path, table, group, columns)

    monkeypatch.setattr(tables, "read_group", counted)
    assert [source.read(entry) for entry in entries] == PICTURES
    assert asked == [(0, ["image.bytes"]), (1, ["image.bytes"]), (2, ["image.bytes"])]
