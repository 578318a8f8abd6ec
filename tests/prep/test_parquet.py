"""Parquet tables: columns, class names, and the errors for invalid tables."""

import json
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.listing import Undecodable
from decodeonce.prep.sources import open_source
from decodeonce.prep.sources import parquet as tables
from decodeonce.prep.sources.parquet import ParquetSource, open_parquet, reading
from decodeonce.store import open_store
from tests.command import prep, printed, run
from tests.forms.parquet import images, write_table
from tests.images import jpeg

IMAGES = [jpeg(20, 10, seed=seed) for seed in range(5)]
IMAGE_COLUMN = images([(data, f"{k}.jpg") for k, data in enumerate(IMAGES)])
TEXTS = ["dog", "cat", "cat", "dog", "ape"]


def table(root: Path, columns: dict[str, Any], **options: Any) -> Path:
    return write_table(root / "a.parquet", columns, **options)


def labels(source: ParquetSource) -> list[str]:
    return [source.listing().classes[entry.label].name for entry in source.scan().entries]


def test_labels_are_numbers_or_names(tmp_path: Path) -> None:
    for label, names, expected in (
        (pa.array([1, 0, 0, 1, 2]), ["ape", "cow", "dog", "emu"], ["cow", "ape", "ape", "cow", "dog"]),
        (pa.array([1, 0, 0, 1, 2], pa.int8()), None, ["1", "0", "0", "1", "2"]),
        (pa.array(TEXTS), None, TEXTS),
        (pa.array(TEXTS, pa.large_string()), None, TEXTS),
        (pa.array(TEXTS).dictionary_encode(), None, TEXTS),
        (pa.array(["3", "1", "0", "1", "1"]), None, ["3", "1", "0", "1", "1"]),
    ):
        source = open_parquet(table(tmp_path, {"image": IMAGE_COLUMN, "label": label}, names=names))
        assert labels(source) == expected
        restored = open_source(source.kind, source.root, json.loads(json.dumps(source.arguments())))
        assert [restored.read(entry)[0] for entry in source.scan().entries] == IMAGES


def test_class_list_overrides_names_in_schema(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": IMAGE_COLUMN, "label": [1, 0, 0, 1, 1]}, names=["a", "b"])
    assert labels(open_parquet(path, classes=["x", "y"])) == ["y", "x", "x", "y", "y"]
    with pytest.raises(BuildError, match=r"a\.parquet: label 1, expected 0 to 0; the class list has 1 names"):
        list(open_parquet(path, classes=["x"]).scan().entries)


def test_texts_of_digits_are_names_of_given_classes(tmp_path: Path) -> None:
    digits, classes = ["2", "0", "1", "2", "0"], ["2", "0", "1"]
    texts = table(tmp_path, {"image": IMAGE_COLUMN, "label": digits})
    assert labels(open_parquet(texts, classes=classes)) == digits
    numbers = table(tmp_path, {"image": IMAGE_COLUMN, "label": list(map(int, digits))})
    assert labels(open_parquet(numbers, classes=classes)) == ["1", "2", "0", "1", "2"]


def test_classes_have_the_names_of_the_schema_or_are_numbers(tmp_path: Path) -> None:
    names = {"info": {"features": {"label": {"names": {"0": "a", "1": "b", "2": "c"}, "_type": "ClassLabel"}}}}
    plain = pa.table({"image": IMAGE_COLUMN, "label": [0, 1, 1, 0, 2]})
    for metadata, expected in (
        ({}, "01102"),
        ({"huggingface": "{"}, "01102"),
        ({"huggingface": '{"info": {"features": {}}}'}, "01102"),
        ({"huggingface": json.dumps(names)}, "abbac"),
        ({"huggingface": json.dumps(names).replace('"0": "a", "1": "b"', '"1": "b", "0": "a"')}, "abbac"),
    ):
        pq.write_table(plain.replace_schema_metadata(metadata), tmp_path / "a.parquet")
        assert labels(open_parquet(tmp_path / "a.parquet")) == list(expected)


def test_samples_are_named_by_file_row_and_path(tmp_path: Path) -> None:
    for name in ("a/t-0.parquet", "b/t-0.parquet"):
        write_table(tmp_path / name, {"image": IMAGE_COLUMN, "label": [0] * 5}, group=2)
    source = open_parquet(tmp_path)
    entries = list(source.scan().entries)
    assert [entry.text for entry in entries[:2]] == ["a/t-0.parquet/0/0.jpg", "a/t-0.parquet/1/1.jpg"]
    assert entries[-1].text == "b/t-0.parquet/4/4.jpg"
    assert [(entry.unit, entry.place) for entry in entries[3:8]] == [(1, 1), (2, 0), (3, 0), (3, 1), (4, 0)]
    assert {entry.size for entry in entries} == {0}
    assert source.found == "2 Parquet files, images from image.bytes, labels from label"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.struct([("bytes", pa.large_binary())])])
def test_images_may_be_plain_bytes(tmp_path: Path, kind: Any) -> None:
    data = [{"bytes": data} for data in IMAGES] if pa.types.is_struct(kind) else IMAGES
    source = open_parquet(table(tmp_path, {"jpg": pa.array(data, kind), "cls": TEXTS}))
    entries = list(source.scan().entries)
    assert [entry.text for entry in entries] == [f"a.parquet/{row}" for row in range(5)]
    assert [source.read(entry)[0] for entry in entries] == IMAGES


@pytest.mark.parametrize("statistics", [True, False])
def test_rows_without_image_or_label_are_problems(tmp_path: Path, statistics: bool) -> None:
    values = images([(IMAGES[0], None), None, (None, "elsewhere.jpg"), (IMAGES[3], "3.jpg"), (IMAGES[4], "")])
    path = table(tmp_path, {"image": values, "label": [0, 1, 1, None, -1]}, group=5, write_statistics=statistics)
    source = open_parquet(path)
    entries = list(source.scan().entries)
    missing = tables.NO_BYTES if statistics else ""
    assert [entry.problem for entry in entries] == ["", missing, missing, "no label", "label -1, expected 0 or more"]
    assert source.read(entries[0])[0] == IMAGES[0]
    with pytest.raises(Undecodable, match="not in the table"):
        source.read(entries[2])


def test_error_for_missing_columns_lists_columns(tmp_path: Path) -> None:
    for columns, message in (
        ({"x": [1], "label": [0]}, r"no column looks like images; .*--image-column; the columns are x \(int64\), lab"),
        ({"a": [b"x"], "b": [b"x"], "label": [0]}, "no column looks like images"),
        ({"img": [b"x"], "jpg": [b"x"], "label": [0]}, r"several columns may hold images \(img, jpg\)"),
        ({"image": [b"x"], "label": [0], "class": ["a"]}, r"several columns may hold labels \(label, class\)"),
        (
            {"image": [b"x"], "coarse_label": [0], "fine_label": [0]},
            r".* labels \(coarse_label, fine_label\); choose one",
        ),
        ({"image": [b"x"], "caption": ["a"]}, "no column looks like labels"),
        ({"image": [b"x"], "label": [0.5]}, "no column looks like labels"),
    ):
        with pytest.raises(BuildError, match=r"a\.parquet: " + message):
            open_parquet(table(tmp_path, columns))


def test_missing_or_invalid_named_column_is_an_error(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"image_column": "nope"}, r"--image-column nope: no such column; the columns are image \(struct.*\), label"),
        ({"label_column": "nope"}, r"--label-column nope: no such column; the columns are image"),
        ({"image_column": "label"}, r"--image-column label: cannot hold images, expected binary, or a struct"),
        ({"label_column": "image"}, r"--label-column image: cannot hold labels, expected integers or strings; the"),
    ]
    for named, message in cases:
        with pytest.raises(BuildError, match=r"a\.parquet: " + message):
            open_parquet(table(tmp_path, {"image": IMAGE_COLUMN, "label": TEXTS}), **named)


@pytest.mark.parametrize("values", [[True, False, True], [1.0, 0.0, 1.0]])
@pytest.mark.parametrize(("name", "named"), [("label", ""), ("label", "label"), ("is it's", "is it's")])
def test_labels_of_another_type_can_be_cast_as_the_error_says(
    tmp_path: Path, values: list[Any], name: str, named: str
) -> None:
    others = {"target": values} if named else {}
    file = table(tmp_path, {**others, "image": IMAGES[:3], name: values})
    with pytest.raises(BuildError, match=f"if {name} has class numbers, cast it to int64: ") as caught:
        open_parquet(file, label_column=named)
    arrow, hub = str(caught.value).split("int64: ")[1].split(" in datasets")[0].split(" in pyarrow, or ")
    found: dict[str, Any] = {"table": pq.read_table(file)}
    exec(arrow, found)
    pq.write_table(found["table"], file)
    assert [entry.label for entry in open_parquet(file, label_column=named).scan().entries] == [1, 0, 1]
    if find_spec("datasets"):
        datasets = import_module("datasets")
        names: dict[str, Any] = {"datasets": datasets, "data": datasets.Dataset.from_dict({name: values})}
        exec(hub, names)
        assert names["data"][name] == [1, 0, 1]
        assert names["data"].features[name] == datasets.Value("int64")


@pytest.mark.parametrize("count", [12, 1100])
def test_rows_without_any_column_but_the_images_are_all_listed(tmp_path: Path, count: int) -> None:
    file = table(tmp_path, {"jpg": pa.array([b"x"] * (count + 3), pa.binary())}, group=count)
    entries = list(open_parquet(file, no_labels=True).scan().entries)
    assert [(entry.unit, entry.place) for entry in entries] == [*((0, k) for k in range(count)), (1, 0), (1, 1), (1, 2)]


@pytest.mark.skipif(not hasattr(pa, "binary_view"), reason="this pyarrow has no view types")
@pytest.mark.parametrize("inside", [False, True])
def test_view_types_are_read_like_binary_and_strings(tmp_path: Path, inside: bool) -> None:
    values = pa.array(IMAGES, pa.binary_view())
    image = pa.StructArray.from_arrays([values], ["bytes"]) if inside else values
    source = open_parquet(table(tmp_path, {"image": image, "label": pa.array(TEXTS, pa.string_view())}, group=5))
    assert labels(source) == TEXTS
    assert [source.read(entry)[0] for entry in source.scan().entries] == IMAGES


def test_many_labels_cause_no_warning_with_names_in_schema(tmp_path: Path) -> None:
    for names, warnings in (
        (list("abcde"), []),
        (None, ["5 different labels for 5 samples; check that the labels are classes"]),
    ):
        source = open_parquet(table(tmp_path, {"image": IMAGE_COLUMN, "label": [0, 1, 2, 3, 4]}, names=names))
        assert source.listing().warnings == warnings
    assert source.found == "1 Parquet file (a.parquet), images from image.bytes, labels from label"


def test_columns_can_be_named(tmp_path: Path) -> None:
    columns = {"mask": IMAGE_COLUMN, "image": IMAGE_COLUMN, "label": ["pet"] * 5, "fine": TEXTS}
    assert "image.bytes" in open_parquet(table(tmp_path, columns)).found
    source = open_parquet(table(tmp_path, columns), image_column="mask", label_column="fine")
    assert labels(source) == TEXTS
    assert "mask.bytes" in source.found


def test_columns_that_are_not_kept_are_named(tmp_path: Path) -> None:
    columns = {"image": IMAGE_COLUMN, "label": [0, 1, 1, 0, 0], "age": [1] * 5, "score": [0.5] * 5, "class_name": TEXTS}
    file = table(tmp_path, columns, names=["a", "b"])
    left = "columns that are not kept: score, class_name; --column NAME keeps a column of numbers"
    assert open_parquet(file, column=["age"]).listing().warnings == [left]
    bare = table(tmp_path, {"jpg": IMAGES, "label": [0, 1, 1, 0, 0]})
    assert open_parquet(bare).listing().warnings == []
    for name, others in (("t-0", {}), ("t-1", {"age": [1] * 5})):
        write_table(tmp_path / f"t/{name}.parquet", {"image": IMAGE_COLUMN, "label": [0, 1, 1, 0, 0], **others})
    for columns, numbers, label in (
        ({"label": [0] * 5, "class_id": [1] * 5}, [], "label"),
        ({"target": [30] * 5, "class_id": [1] * 5}, ["target"], "class_id"),
        ({"label": [7] * 5, "fine_label": [1] * 5}, ["label"], "fine_label"),
        ({"label": [7] * 5, "num_labels": [1] * 5}, [], "label"),
    ):
        found = open_parquet(table(tmp_path, {"image": IMAGE_COLUMN, **columns}), column=numbers).found
        assert f"labels from {label}" in found, columns
    [warning] = open_parquet(tmp_path / "t", no_labels=True).listing().warnings
    assert warning == "columns that are not kept: label, age; --column NAME keeps a column of numbers"


def test_file_without_columns_and_classes_of_first_is_an_error(tmp_path: Path) -> None:
    first = {"image": IMAGE_COLUMN, "label": [0] * 5}
    write_table(tmp_path / "t-0.parquet", first, names=["a", "b"])
    for second, names, message in (
        ({"image": IMAGE_COLUMN, "class": [0] * 5}, None, "no column label, which the first file has"),
        ({"image": IMAGES, "label": [0] * 5}, None, r"no column image\.bytes, which the first file has"),
        (first, ["b", "a"], "its classes differ"),
    ):
        write_table(tmp_path / "t-1.parquet", second, names=names)
        with pytest.raises(BuildError, match=rf"t-1\.parquet: {message}"):
            list(open_parquet(tmp_path).scan().entries)


def test_folder_with_several_splits_is_an_error(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_table(tmp_path / f"data/{split}-00000-of-00001.parquet", {"image": IMAGE_COLUMN, "label": [0] * 5})
    with pytest.raises(BuildError, match="several splits"):
        open_parquet(tmp_path)
    assert len(list(open_parquet(f"{tmp_path}/data/train-*").scan().entries)) == 5
    assert len(list(open_parquet(f"{tmp_path}/data/{{train,test}}-*.parquet").scan().entries)) == 10


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (["train", "TEST", "test", "train"], "TEST, test, train"),
        (["train", "val", "val", None], "train, val"),
        (["train", "training", "train", "train"], ""),
        (["left", "test", "val", "val"], ""),
    ],
)
@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_column_of_several_splits_causes_a_warning(
    tmp_path: Path, values: list[str | None], warned: str, kind: str
) -> None:
    splits = pa.array(values, pa.string() if kind == "dictionary" else kind)
    for number in range(2):
        here = splits[2 * number : 2 * number + 2]
        columns = {"image": IMAGE_COLUMN[:2], "label": [0] * 2, "name": ["a", "b"]}
        columns["split"] = here.dictionary_encode() if kind == "dictionary" else here
        write_table(tmp_path / f"t-{number}.parquet", columns)
    found = [text for text in open_parquet(tmp_path).listing().warnings if "all values" in text]
    expected = f"the store has the rows of all values of column split ({warned}); to build a store for each, see docs/"
    assert [text[: len(expected)] for text in found] == [expected] * bool(warned)
    as_labels = open_parquet(tmp_path, label_column="split")
    assert not any("all values" in text for text in as_labels.listing().warnings)


@pytest.mark.parametrize(
    ("val", "train", "labels", "names", "warns"),
    [
        ("validation-00000-of-00001", "train-00003-of-00008", ["a", "b"], None, True),
        ("validation-00000-of-00001", "train-00003-of-00008", [0, 1], None, False),
        ("validation-00000-of-00001", "train-00003-of-00008", [0, 1], ["a", "b"], False),
        ("val", "train", ["a", "b"], None, True),
        ("Test/00", "Train/01", ["a", "b"], None, True),
        ("val", "other", ["a", "b"], None, False),
    ],
)
def test_class_names_of_a_held_out_split_that_may_be_others_cause_a_warning(
    tmp_path: Path, val: str, train: str, labels: list[Any], names: list[str] | None, warns: bool
) -> None:
    for split in (val, train):
        file = tmp_path / f"{split}.parquet"
        file.parent.mkdir(exist_ok=True)
        write_table(file, {"image": IMAGE_COLUMN[:2], "label": labels}, names=names)
    said = [text for text in open_parquet(tmp_path / f"{val}.parquet").listing().warnings if "labels differ" in text]
    expected = f"the classes are the 2 labels that were found, so labels differ if {tmp_path}/{train}.parquet has other"
    assert [text[: len(expected)] for text in said] == [expected] * warns
    classes = open_parquet(tmp_path / f"{val}.parquet", classes=["a", "b"])
    for source in (classes, open_parquet(tmp_path / f"{train}.parquet")):
        assert not any("labels differ" in text for text in source.listing().warnings)


def test_classes_of_train_can_be_passed_with_the_advice(tmp_path: Path) -> None:
    for split, labels in (("train", ["a dog's", "c"]), ("val", ["c", "c"])):
        write_table(tmp_path / f"{split}.parquet", {"image": IMAGE_COLUMN[:2], "label": labels})
    printed("build", "parquet", "train.parquet", "train.store", "--size", 8, cwd=tmp_path)
    said = prep("build", "parquet", "val.parquet", "x", "--size", 8, cwd=tmp_path).stderr
    command, _, flags = said.partition("if it had none, run: ")[2].partition(", where STORE is its store, and pass ")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    run("bash", "-c", command.replace("STORE", "train.store"), cwd=tmp_path, PATH=path)
    printed("build", "parquet", "val.parquet", "val.store", "--size", 8, *flags.split(), cwd=tmp_path)
    assert open_store(tmp_path / "val.store").labels.tolist() == [1, 1]


def test_error_for_damaged_pages_names_row_group(tmp_path: Path) -> None:
    path = table(tmp_path, {"image": IMAGE_COLUMN, "label": [0] * 5})
    source = open_parquet(path)
    entries = list(source.scan().entries)
    facts, data = path.stat(), bytearray(path.read_bytes())
    leaf = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = leaf.dictionary_page_offset or leaf.data_page_offset
    data[start : start + 40] = bytes(40)
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert source.read(entries[0])[0] == IMAGES[0]
    with pytest.raises(BuildError, match=r"a\.parquet: row group 1: .*; expected a complete Parquet file"):
        source.read(entries[4])


def test_temporary_file_system_error_stops_task() -> None:
    with pytest.raises(Stopped, match=r"a\.parquet: Input/output error"), reading("a.parquet"):
        raise OSError(5, "Input/output error")


def test_error_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BuildError, match="run: pip install pyarrow"):
        tables.pyarrow()


def test_row_group_is_read_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_parquet(table(tmp_path, {"image": IMAGE_COLUMN, "label": TEXTS}, group=2))
    entries = list(source.scan().entries)
    calls: list[tuple[int, list[str]]] = []
    read = tables.Table.read

    def counted(table: tables.Table, group: int, columns: list[str]) -> Any:
        calls.append((group, columns))
        return read(table, group, columns)

    monkeypatch.setattr(tables.Table, "read", counted)
    assert [source.read(entry)[0] for entry in entries] == IMAGES
    assert calls == [(0, ["image.bytes"]), (1, ["image.bytes"]), (2, ["image.bytes"])]
