"""Numeric columns of a source: each row has the values of its own image, also with rejects and shuffling."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from decodeonce.build import BoxRules, Conversion, Recipe, Selection, WorkSettings, build, make_plan, repair_store
from decodeonce.errors import BuildError
from decodeonce.prep.building import plan as plan_module
from decodeonce.sources import BoxedSource, Source, open_list, open_parquet, open_webdataset
from decodeonce.store import Store, add_column, open_store, verify_store
from decodeonce.store.manifest import DATA_OFFSET
from tests.forms.boxed import whole
from tests.forms.parquet import images as parquet_images
from tests.forms.parquet import write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg, tree_bytes
from tests.prep.building import build_in_process, convert_in_process
from tests.store.signing import flip

COUNT = 12
BAD = 3  # cannot be decoded
NAMES = ["score", "ids", "rank"]
# Rows of 3 KiB, four per block, one block per shard.
RECIPE = Recipe(height=32, width=32, shard_size=DATA_OFFSET + 4 * 3072, shuffle_seed=5)


def values_of(number: int) -> dict[str, Any]:
    """Return the values of the sample `number`; the first score is a whole number."""
    return {"score": number / 4, "ids": [number, -number, 2**40 + number], "rank": 100 - number}


DATA = [b"no picture" if number == BAD else jpeg(40, 50, seed=number) for number in range(COUNT)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "SMALLEST", 1)


def write_images(root: Path) -> Path:
    """Write 0.jpg, 1.jpg and so on below root/images."""
    for number, data in enumerate(DATA):
        path = root / f"images/{number % 2}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root / "images"


def write_csv(file: Path, rows: Sequence[Sequence[object]]) -> Path:
    """Write a list as pandas does: lists of numbers are quoted fields in brackets."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.getvalue())
    return file


def as_list(root: Path, column: list[str]) -> Source:
    top = write_images(root)
    rows = [[number % 2, *values_of(number).values(), f"{number % 2}/{number}.jpg"] for number in range(COUNT)]
    missing = [0, *values_of(99).values(), "0/gone.jpg"]  # a plan-time reject with values
    rows.insert(5, missing)
    return open_list(write_csv(top / "list.csv", [["label", *NAMES, "path"], *rows]), column=column)


def as_webdataset(root: Path, column: list[str], name: str = "a.tar") -> Source:
    files = []
    for number, data in enumerate(DATA):
        files += sample(f"{number}", data, cls=number % 2, json={**values_of(number), "caption": "a cat"})
        if number == 5:
            files.append(("no-image.cls", b"0"))  # a reject without values
    mode = "w:gz" if name.endswith("gz") else "w"
    return open_webdataset(str(write_tar(root / name, files, mode)), column=column)


def as_parquet(root: Path, column: list[str]) -> Source:
    images: list[tuple[bytes | None, str | None] | None] = [(d, f"{n}.jpg") for n, d in enumerate(DATA)]
    labels = [number % 2 for number in range(COUNT)]
    given = [values_of(number) for number in range(COUNT)]
    images.insert(5, None)
    labels.insert(5, 0)
    given.insert(5, {"score": None, "ids": None, "rank": None})
    columns = {name: pa.array([some[name] for some in given]) for name in NAMES}
    table = {"image": parquet_images(images), "label": pa.array(labels), "caption": pa.array(["x"] * 13), **columns}
    return open_parquet(write_table(root / "a.parquet", table), column=column)


MAKERS: dict[str, Callable[[Path, list[str]], Source]] = {
    "list": as_list,
    "webdataset": as_webdataset,
    "webdataset-gzip": lambda root, column: as_webdataset(root, column, "a.tgz"),
    "parquet": as_parquet,
}


def check_values(store: Store, count: int = COUNT - 1) -> None:
    """Check that each row has the values of its own image."""
    assert verify_store(store.paths.root).ok
    assert len(store) == count
    columns = store.columns
    found = {name: (a.dtype.str, a.shape) for name, a in columns.items() if name in NAMES}
    assert found == {"score": ("<f4", (count,)), "ids": ("<i8", (count, 3)), "rank": ("<i8", (count,))}
    for row, line in enumerate(store.samples):
        wanted = values_of(int(Path(line.source).stem))
        assert {name: columns[name][row].tolist() for name in NAMES} == wanted


@pytest.mark.parametrize("kind", MAKERS)
def test_every_row_has_the_values_of_its_own_image(kind: str, tmp_path: Path) -> None:
    store = open_store(build_in_process(MAKERS[kind](tmp_path, NAMES), tmp_path / "out", RECIPE))
    check_values(store)
    assert store.manifest.recipe["columns"] == NAMES
    assert [column.name for column in store.manifest.columns] == NAMES


def test_number_of_workers_changes_no_byte_and_killed_finish_is_completed(tmp_path: Path) -> None:
    in_process = build_in_process(as_list(tmp_path, NAMES), tmp_path / "one", RECIPE)
    source, out = as_list(tmp_path, NAMES), tmp_path / "two"
    make_plan(source, out, RECIPE)
    (out / "ids.npy").write_bytes(b"half of")  # as a killed finish leaves it
    build(source, out, RECIPE, WorkSettings(workers=2, max_bad="5"))
    assert tree_bytes(out) == tree_bytes(in_process)


def test_column_dtype_follows_from_numbers(tmp_path: Path) -> None:
    top, recipe = write_images(tmp_path), Recipe(height=8, width=8, shuffle_seed=None)
    numbers: list[tuple[list[Any], str]] = [
        ([1, 2], "<i8"),
        ([-(2**63), 2**63 - 1], "<i8"),
        ([1, 2.0], "<f4"),
        ([0.5, 3], "<f4"),
        (["true", "false"], "<i8"),
        ([[0, 1], [1, 0]], "<i8"),
        ([[0, 1], [0.25, 0.75]], "<f4"),
        (["1e3", "-2.5E-3"], "<f4"),
        ([0.1, 2**24], "<f4"),
        ([0.1, 2**24 + 1], "<f8"),
        ([1763800000.25, 1763800000.5], "<f8"),
    ]
    for out, (given, dtype) in enumerate(numbers):
        rows: list[list[Any]] = [["path", "x"], *([f"0/{2 * number}.jpg", one] for number, one in enumerate(given))]
        source = open_list(write_csv(top / "list.csv", rows), column=["x"])
        found = open_store(build_in_process(source, tmp_path / str(out), recipe)).columns["x"]
        wanted = [json.loads(value) if isinstance(value, str) else value for value in given]
        np.testing.assert_array_equal(found, np.array(wanted).astype(dtype))
        assert found.dtype.str == dtype


NUMBER = "expected a number, or a list of numbers like [1, 2]"


def test_non_numbers_are_reported_with_file_and_line(tmp_path: Path) -> None:
    for given, message in (
        ([1, ""], r"list.csv: line 3: column 'x': found nothing, expected a number, like the first row; if the value"),
        ([1, " "], r"found nothing, .*; if the value is missing, write a number that no row has, such as -999, or"),
        ([1, "a cat"], r"line 3: column 'x': found 'a cat', expected a number, .*for text, store token ids"),
        (["[1, 2]", "[1]"], r"line 3: column 'x': found \[1\], expected a list of 2 numbers, like the first row"),
        (["7", "[7]"], r"line 3: column 'x': found \[7\], expected a number"),
        (["[]"], r"line 2: column 'x': found \[\], " + NUMBER.replace("[", r"\[")),
        (
            ["NaN"],
            r"line 2: column 'x': found nan, .*; if the value is missing, write a number.*; numbers must be finite",
        ),
        (["1e309"], r"line 2: column 'x': found inf"),
        ([2**63], r"line 2: column 'x': found 9223372036854775808, .*; numbers must be finite"),
        ([1, "-inf"], r"line 3: column 'x': found -inf, .*; numbers must be finite, and whole numbers must fit int64"),
        (["[" * 9000], r"line 2: column 'x': found '\[\[\["),
    ):
        top = write_images(tmp_path)
        rows: list[list[Any]] = [["path", "x"], *([f"0/{2 * number}.jpg", value] for number, value in enumerate(given))]
        with pytest.raises(BuildError, match=message):
            list(open_list(write_csv(top / "list.csv", rows), column=["x"]).scan().entries)


def test_missing_column_is_reported(tmp_path: Path) -> None:
    for header, column, message in (
        (None, ["x"], "list.csv: no header line, but --column x needs one"),
        (["path", "x"], ["y"], "list.csv: --column y: no column of this name, expected one of path, x"),
        (["path", "label", "x", "x"], ["x"], "2 columns are called x; rename them, or choose another with --column"),
        (["path", "lbl", "x"], ["x"], "columns path, lbl, x; expected a path and a label"),
        (["path", "x"], ["x", "x"], "--column x: given more than once"),
        (["path", "labels"], ["labels"], "--column: column name 'labels': a build writes box_count,"),
        (["path", "a/b"], ["a/b"], "--column: column name 'a/b': expected printable characters without '/'"),
    ):
        rows: list[list[Any]] = [header or ["0/0.jpg", 1], ["0/2.jpg", *[1] * (len(header or "12") - 1)]]
        file = write_csv(write_images(tmp_path) / "list.csv", rows)
        with pytest.raises(BuildError, match=re.escape(message)):
            list(open_list(file, column=column).scan().entries)


def test_list_with_columns_but_no_label_uses_folders_as_classes(tmp_path: Path) -> None:
    rows: list[list[Any]] = [["path", "x"], ["0/0.jpg", 1], ["1/1.jpg", 2]]
    source = open_list(write_csv(write_images(tmp_path) / "list.csv", rows), column=["x"])
    assert [(entry.label, entry.values) for entry in source.scan().entries] == [(0, (1,)), (1, (2,))]


def test_missing_webdataset_value_is_reported(tmp_path: Path) -> None:
    for parts, message in (
        ({"json": {"label": 1}}, "k.jpg: column 'x': found nothing, expected a json object of at most 65536 bytes"),
        (
            {"cls": 1, "json": {"x": None}},
            "found nothing, expected a number, like the first row; if the value is missing",
        ),
        ({"cls": 1, "json": {"x": [1] * 40000}}, "found nothing, expected a json object of at most 65536 bytes"),
        ({"cls": 1}, "a.tar: k.jpg: column 'x': found nothing"),
        ({"cls": 1, "json": {"x": "a cat"}}, "a.tar: k.jpg: column 'x': found 'a cat'"),
        (
            {"cls": 1, "json": {"x": "cat"}},
            "for labels, write numbers: in pandas df['x'].astype('category').cat.codes",
        ),
        ({"cls": 1, "json": {"x": "24,5"}}, "found '24,5', expected a number, like the first row; write it as 24.5 or"),
    ):
        files = [*sample("j", DATA[0], cls=0, json={"x": 1}), *sample("k", DATA[0], **parts)]
        with pytest.raises(BuildError, match=re.escape(message)):
            list(open_webdataset(str(write_tar(tmp_path / "a.tar", files)), column=["x"]).scan().entries)


def test_webdataset_sample_without_label_needs_no_value(tmp_path: Path) -> None:
    files = [*sample("j", DATA[0], cls=0, json={"x": 1}), *sample("k", DATA[0])]
    files += sample("l", DATA[0], cls=0, json={"x": 3})
    found = list(open_webdataset(str(write_tar(tmp_path / "a.tar", files)), column=["x"]).scan().entries)
    assert [(entry.values, bool(entry.problem)) for entry in found] == [((1,), False), ((), True), ((3,), False)]


def test_unsupported_parquet_columns_are_reported(tmp_path: Path) -> None:
    for column, message in (
        (pa.array(["a", "b"]), "column x has type string; expected integers, floats or booleans, or lists of"),
        (pa.array([[[1]], [[2]]]), "column x has type list<"),
        (pa.array([1, None]), "a.parquet: row 1: column 'x': found nothing, expected a number, like the first row"),
        (pa.array([[1, 2], [1]]), "a.parquet: row 1: column 'x': found [1], expected a list of 2 numbers"),
        (pa.array([float("nan"), 1.0]), "a.parquet: row 0: column 'x': found nan"),
        (None, "--column x: no such column; the columns are image (struct"),
    ):
        table = {"image": parquet_images([(DATA[0], None)] * 2), "label": pa.array([0, 1])}
        file = write_table(tmp_path / "a.parquet", table if column is None else {**table, "x": column})
        with pytest.raises(BuildError, match=re.escape(message)):
            list(open_parquet(file, column=["x"]).scan().entries)


def test_lists_of_any_arrow_type_are_kept(tmp_path: Path) -> None:
    lists = {
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        "large": pa.array([[1, 2], [3, 4]], pa.large_list(pa.uint8())),
        "bool": pa.array([[True, False], [False, True]]),
        "float": pa.array([[0.5, 0.25], [0.1, 0.2]], pa.list_(pa.float32())),
    }
    table = {"image": parquet_images([(DATA[0], None)] * 2), "label": pa.array([0, 1]), **lists}
    source = open_parquet(write_table(tmp_path / "a.parquet", table, group=1), column=list(lists))
    store = open_store(build_in_process(source, tmp_path / "out", RECIPE))
    rows = [int(line.source.split("/")[1]) for line in store.samples]
    for name, found in store.columns.items():
        wanted = np.array([lists[name].to_pylist()[row] for row in rows])
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))


def test_different_columns_or_values_are_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_plan(as_list(tmp_path, NAMES), out, RECIPE)
    same, other = (open_list(tmp_path / "images/list.csv", column=names) for names in (NAMES, ["rank"]))
    with pytest.raises(BuildError, match=r"--column is \['rank'\], the plan says \['score', 'ids', 'rank'\]"):
        make_plan(other, out, RECIPE)
    assert make_plan(same, out, RECIPE).count == COUNT
    file = tmp_path / "images/list.csv"
    text = file.read_text()
    file.write_text(text.replace("0.25", "0.26"))
    with pytest.raises(BuildError, match="the same images with other classes, boxes, values"):
        make_plan(open_list(file, column=NAMES), out, RECIPE)
    file.write_text(text)
    build_in_process(same, out, RECIPE)
    with pytest.raises(BuildError, match=r"--column is \['rank'\], the store says \['score', 'ids', 'rank'\]"):
        build(other, out, RECIPE)
    build(same, out, RECIPE)  # finished already


def test_needed_space_includes_columns(tmp_path: Path) -> None:
    from decodeonce.prep.building.free_space import space_needed

    plans = [
        make_plan(as_list(tmp_path / name, names), tmp_path / name / "out", RECIPE)
        for name, names in (("with", NAMES), ("without", []))
    ]
    more, less = map(space_needed, plans)
    assert (more.bytes - less.bytes, more.files - less.files) == (COUNT * 2 * (8 + 3 * 8 + 8), 6)


def test_every_box_of_an_image_has_its_values(tmp_path: Path) -> None:
    source = as_list(tmp_path, NAMES)
    (tmp_path / "boxes").mkdir()
    for number in range(COUNT):
        (tmp_path / f"boxes/{number}.xml").write_text(whole("0"))
    per_object = BoxedSource(source, tmp_path / "boxes", BoxRules())
    store = open_store(build_in_process(per_object, tmp_path / "objects", replace(RECIPE, boxes=BoxRules())))
    objects = len(store) // (COUNT - 1)
    check_values(store, objects * (COUNT - 1))
    kept = BoxRules(keep=2)
    with_boxes = BoxedSource(source, tmp_path / "boxes", kept)
    store = open_store(build_in_process(with_boxes, tmp_path / "with_boxes", replace(RECIPE, boxes=kept)))
    check_values(store)
    assert {"boxes", "box_count"} <= store.columns.keys()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return build_in_process(as_list(tmp_path, NAMES), tmp_path / "out", RECIPE)


def test_conversions_keep_columns(store: Path, tmp_path: Path) -> None:
    check_values(open_store(store))
    resized = Conversion(size=(16, 16), shuffle_seed=1, container="hdf5")
    check_values(open_store(convert_in_process([store], tmp_path / "small", resized)))
    selected = Conversion(selection=Selection(("0",), None, (None, None)), sort="source")
    zeros = convert_in_process([store], tmp_path / "zeros", selected)
    check_values(open_store(zeros), 6)
    check_values(open_store(convert_in_process([store, zeros], tmp_path / "joined", Conversion())), COUNT - 1 + 6)


def test_rows_and_lost_column_are_repaired(store: Path, tmp_path: Path) -> None:
    before = tree_bytes(store)
    shutil.copytree(store, tmp_path / "copy")
    flip(store / "images-00000.npy", DATA_OFFSET + 100)
    assert repair_store(store, str(tmp_path / "images")).repaired_rows == 1
    (store / "ids.npy").unlink()
    report = verify_store(store)
    assert report.bad_files == ["ids.npy"]
    unrepaired = repair_store(store, str(tmp_path / "images")).unrepaired
    assert len(unrepaired) == 1
    assert "ids.npy: damaged; " in unrepaired[0]
    assert repair_store(store, str(tmp_path / "copy")).ok
    assert tree_bytes(store) == before


def test_build_recognizes_store_after_column_was_added(store: Path, tmp_path: Path) -> None:
    add_column(store, "later", np.arange(COUNT - 1))
    before = tree_bytes(store)
    build(open_list(tmp_path / "images/list.csv", column=NAMES), store, RECIPE)
    assert tree_bytes(store) == before
