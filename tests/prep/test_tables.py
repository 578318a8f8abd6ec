"""Tables as people have them: columns of any name, ids without suffixes, numbers to predict, and no labels at all."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources.file_list import open_list
from decodeonce.prep.sources.webdataset import open_webdataset
from decodeonce.store import open_store
from tests.command import assert_fails, prep
from tests.images import jpeg

FLAGS = ("--size", 8, "--workers", 1, "--shuffle-seed", "none")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for number in range(4):
        (tmp_path / f"photos/{number:04}.jpg").write_bytes(jpeg(30, 20, seed=number))
    return tmp_path


def build_list(root: Path, table: str, *flags: object) -> Any:
    (root / "table.csv").write_text(table)
    return prep("build", "list", root / "table.csv", root / "out", "--root", root / "photos", *FLAGS, *flags)


@pytest.mark.parametrize("header", ["id,breed", "image_id,label", "id_code,diagnosis", "fname,label"])
def test_columns_and_suffix_can_be_named(root: Path, header: str) -> None:
    image, label = header.split(",")
    table = f"{header}\n0000,pug\n0001,beagle\n0002,pug\n"
    failed = build_list(root, table)
    assert (failed.returncode, "labels are classes" in failed.stderr) == (1, False)
    flags = ("--image-column", image, "--label-column", label, "--suffix", ".jpg")
    assert build_list(root, table, *flags).returncode == 0
    store = open_store(root / "out")
    assert [store.classes[label].name for label in store.labels] == ["pug", "beagle", "pug"]
    assert [sample.source for sample in store.samples] == ["0000.jpg", "0001.jpg", "0002.jpg"]


def test_missing_column_is_named(root: Path) -> None:
    done = build_list(root, "id,breed\n0000,pug\n", "--image-column", "name")
    assert_fails(done, 1, "--image-column name: no column of this name, expected one of id, breed")


def test_numbers_to_predict_are_a_column(root: Path) -> None:
    table = "path,target\n0000.jpg,0.5\n0001.jpg,2.25\n0002.jpg,-1\n"
    assert (
        "label 0.5 is not a whole number; to predict such numbers, pass --no-labels" in build_list(root, table).stderr
    )
    done = build_list(root, table, "--column", "target", "--no-labels")
    assert (done.returncode, "CSV, without labels" in done.stdout) == (0, True)
    store = open_store(root / "out")
    assert (store.labels.tolist(), [cls.name for cls in store.classes]) == ([0, 0, 0], ["unlabeled"])
    np.testing.assert_array_equal(store.columns["target"][:], np.array([0.5, 2.25, -1], np.float32))


def test_list_of_paths_alone_needs_no_labels(root: Path) -> None:
    paths = "0000.jpg\n0001.jpg\n"
    assert "pass --no-labels" in build_list(root, paths).stderr
    assert build_list(root, paths, "--no-labels").returncode == 0
    assert open_store(root / "out").labels.tolist() == [0, 0]


def test_classes_and_no_labels_are_a_contradiction(root: Path) -> None:
    with pytest.raises(BuildError, match="--no-labels: images without labels have no classes; omit --classes"):
        open_list(root / "table.csv", classes=["a"], no_labels=True)


def test_webdataset_without_labels(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "test.tar", "w") as tar:
        for number in range(3):
            for suffix, data in (("jpg", jpeg(30, 20, seed=number)), ("json", json.dumps({"age": number}).encode())):
                info = tarfile.TarInfo(f"{number}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    assert {entry.problem for entry in open_webdataset(tmp_path / "test.tar").entries()} == {"no label"}
    source = open_webdataset(tmp_path / "test.tar", no_labels=True, column=["age"])
    assert [(entry.label, entry.problem, entry.values) for entry in source.entries()] == [
        (0, "", (n,)) for n in range(3)
    ]
    done = prep("build", "webdataset", tmp_path / "test.tar", tmp_path / "out", "--no-labels", *FLAGS)
    assert (done.returncode, "without labels" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"file_name": "0000.jpg", "label": 1}\n', "JSON, such as metadata.jsonl"),
        ('["0000.jpg", "0001.jpg"]\n', "JSON, such as"),
        ("path;label\n0000.jpg;1\n", "semicolons between the columns"),
    ],
)
def test_other_formats_are_named(root: Path, text: str, message: str) -> None:
    assert_fails(build_list(root, text), 1, message)


def test_column_that_is_kept_can_be_the_label_too(root: Path) -> None:
    table = "path,label\n0000.jpg,1\n0001.jpg,0\n"
    assert build_list(root, table, "--column", "label").returncode == 0
    assert open_store(root / "out").labels.tolist() == [1, 0]
    with pytest.raises(BuildError, match="omit --label-column"):
        open_list(root / "table.csv", label_column="label", no_labels=True)


def test_class_names_may_be_numbers_with_a_point(root: Path) -> None:
    (root / "classes.txt").write_text("1.0\n2.0\n3.0\n")
    table = "path,label\n0000.jpg,1.0\n0001.jpg,2.0\n"
    assert build_list(root, table, "--classes", root / "classes.txt").returncode == 0
    assert open_store(root / "out").labels.tolist() == [0, 1]
