"""Tables as people have them: columns of any name, ids without suffixes, numbers to predict, and no labels at all."""

import bz2
import re
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from decodeonce.errors import BuildError
from decodeonce.prep.sources import find_opener
from decodeonce.prep.sources.file_list import open_list
from decodeonce.prep.sources.parquet import open_parquet
from decodeonce.prep.sources.webdataset import open_webdataset
from decodeonce.store import open_store
from decodeonce.store.manifest import DATA_OFFSET
from tests.command import assert_fails, prep
from tests.forms.imagenet import ZIP
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg
from tests.store.signing import flip

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
    if header == "id,breed":  # the others have a name that is known
        advice = "line 1: 'id': no such file; if this line is a header, pass --image-column id --label-column breed;"
        assert advice in build_list(root, table, "--suffix", ".jpg").stderr
    flags = ("--image-column", image, "--label-column", label, "--suffix", ".jpg")
    assert build_list(root, table, *flags).returncode == 0
    store = open_store(root / "out")
    assert [store.classes[label].name for label in store.labels] == ["pug", "beagle", "pug"]
    assert [sample.source for sample in store.samples] == ["0000.jpg", "0001.jpg", "0002.jpg"]


def test_first_line_is_no_header_if_only_its_suffix_is_missing(root: Path) -> None:
    done = build_list(root, "0000,pug\n0001,beagle\n")
    assert (
        "line 1: '0000': no such file; a file of this name with the suffix .jpg exists; pass --suffix .jpg"
        in done.stderr
    )
    done = build_list(root, "image.id,Breed\n0000,pug\n0001,beagle\n", "--suffix", ".jpg")
    assert "pass --image-column image.id --label-column Breed" in done.stderr


def test_lists_are_no_classes(root: Path) -> None:
    done = build_list(root, 'path,labels\n0000.jpg,"[0, 1]"\n0001.jpg,"[1, 1]"\n')
    message = "label '[0, 1]' is a list; to predict several labels for each image, pass --no-labels"
    assert (done.returncode, message in done.stderr) == (1, True)


def test_missing_column_is_named(root: Path) -> None:
    done = build_list(root, "id,breed\n0000,pug\n", "--image-column", "name")
    assert_fails(done, 1, "--image-column name: no column of this name, expected one of id, breed")
    done = build_list(root, "id;breed\n0000;pug\n", "--image-column", "id")
    assert_fails(done, 1, "expected one of id;breed; write commas or tabs instead of semicolons")


def test_unknown_name_of_the_column_of_paths_is_named(root: Path) -> None:
    table = "photo,age\n0000.jpg,31.5\n0001.jpg,4\n"
    for flags in (["--no-labels"], ["--column", "age"], ["--column", "age", "--no-labels"]):
        assert_fails(build_list(root, table, *flags), 1, "columns photo, age; expected")
        assert "for other names, pass --image-column NAME" in build_list(root, table, *flags).stderr
    failed = build_list(root, table, "--column", "size", "--no-labels")
    assert_fails(failed, 1, "no header line, but --column size needs one")
    assert "for another name, pass --image-column NAME" in failed.stderr
    done = build_list(root, table, "--column", "age", "--no-labels", "--image-column", "photo")
    assert (done.returncode, open_store(root / "out").columns["age"].tolist()) == (0, [31.5, 4])


def test_numbers_to_predict_are_a_column(root: Path) -> None:
    table = "path,target\n0000.jpg,0.5\n0001.jpg,2.25\n0002.jpg,-1\n"
    found = "label 0.5 is not a whole number; to predict such numbers, "
    advice = "pass --no-labels and keep them with --column NAME, in a column of numbers that is not called labels; to"
    assert f"{found}{advice}" in build_list(root, table.replace("target", "labels")).stderr
    assert f"{found}{advice}" in build_list(root, table).stderr
    done = build_list(root, table, "--column", "target", "--no-labels")
    assert (done.returncode, "CSV, without labels" in done.stdout) == (0, True)
    store = open_store(root / "out")
    assert (store.labels.tolist(), [cls.name for cls in store.classes]) == ([0, 0, 0], ["unlabeled"])
    np.testing.assert_array_equal(store.columns["target"][:], np.array([0.5, 2.25, -1], np.float32))


def test_column_alone_is_enough_if_nothing_else_is_a_label(root: Path) -> None:
    for table, labels, said in (
        ("path,target\n0000.jpg,3\n0001.jpg,2.5\n", [0, 0], "the labels are numbers to predict, which the column"),
        ('path,target\n0000.jpg,"[1, 0]"\n0001.jpg,"[1, 1]"\n', [0, 0], "the labels are numbers to predict, which"),
        ("path,age\n0000.jpg,3\n0001.jpg,2.5\n", [0, 0], "CSV, without labels"),
        ("path,target,category\n0000.jpg,3,1\n0001.jpg,2.5,0\n", [1, 0], "CSV, with labels"),
        ("path,age\nphotos/0000.jpg,3\nphotos/0001.jpg,2.5\n", [0, 0], "CSV, classes from folder names"),
    ):
        name = table.partition("\n")[0].split(",")[1]
        (root / "table.csv").write_text(table)
        top = root if "photos" in table else root / "photos"
        out = root / str(len(list(root.iterdir())))
        done = prep("build", "list", root / "table.csv", out, "--root", top, "--column", name, *FLAGS)
        assert (done.returncode, said in done.stdout + done.stderr) == (0, True), done
        store = open_store(out)
        kept = [[1, 0], [1, 1]] if "[" in table else [3, 2.5]
        assert (store.labels.tolist(), store.columns[name].tolist()) == (labels, kept)
    failed = build_list(root, "path,breed,age\n0000.jpg,pug,3\n", "--column", "age")
    assert_fails(failed, 1, "pass --image-column NAME and --label-column NAME, or --no-labels")


def test_column_of_a_table_or_a_tar_is_enough(tmp_path: Path) -> None:
    photos = images([(jpeg(30, 20, seed=seed), None) for seed in range(2)])
    file = write_table(tmp_path / "a.parquet", {"image": photos, "target": [0.5, 2.0]})
    source = open_parquet(file, column=["target"])
    assert [(entry.label, entry.values) for entry in source.scan().entries] == [(0, (0.5,)), (0, (2.0,))]
    assert source.found.endswith("images from image.bytes, without labels")
    named = write_table(tmp_path / "b.parquet", {"image": photos, "target": [0.5, 2.0], "breed": ["pug", "beagle"]})
    with pytest.raises(BuildError, match="no column looks like labels; choose one with --label-column, or pass --no-l"):
        open_parquet(named, column=["target"])
    with pytest.raises(BuildError, match="no column looks like labels"):
        open_parquet(file, column=["target"], classes=["a"])
    for unusable in ([True, False], [0.0, 1.0], [[1], [0]], [b"pug", b"beagle"]):  # labels of the wrong type
        for name in ("label", "coarse"):
            data = {"image": photos, "target": [0.5, 2.0], name: pa.array(unusable)}
            wrong = write_table(tmp_path / "wrong.parquet", data)
            with pytest.raises(BuildError, match=r"no column looks like labels; .*, or pass --no-labels"):
                open_parquet(wrong, column=["target"])
            ignored = open_parquet(wrong, column=["target"], no_labels=True)
            assert [entry.label for entry in ignored.scan().entries] == [0, 0]
    both = write_table(tmp_path / "c.parquet", {"image": photos, "target": [5, 2], "label": [1, 0]})
    assert [entry.label for entry in open_parquet(both, column=["target"]).scan().entries] == [1, 0]
    tar = write_tar(tmp_path / "a.tar", sample("0", jpeg(30, 20), json={"label": 0.5}))
    labeled = open_webdataset(tar, column=["label"])
    before = labeled.fingerprint()
    assert [(entry.label, entry.values) for entry in labeled.scan().entries] == [(0, (0.5,))]
    assert labeled.fingerprint() == before
    assert [cls.name for cls in labeled.listing().classes] == ["unlabeled"]


def test_list_of_paths_alone_needs_no_labels(root: Path) -> None:
    paths = "0000.jpg\n0001.jpg\n"
    assert "pass --no-labels" in build_list(root, paths).stderr
    assert build_list(root, paths, "--no-labels").returncode == 0
    assert open_store(root / "out").labels.tolist() == [0, 0]


def test_classes_and_no_labels_are_a_contradiction(root: Path) -> None:
    write_unlabeled(root)
    for kind, src in SOURCES.items():
        with pytest.raises(BuildError, match="--no-labels ignores labels; omit --classes"):
            find_opener(kind)(src.format(root), classes=["a"], no_labels=True)


SOURCES = {
    "folder": "{}/photos",
    "list": "{}/table.csv",
    "webdataset": "{}/a.tar",
    "parquet": "{}/a.parquet",
    "dataset": "{}/unlabeled:Images",
}


def write_unlabeled(root: Path) -> list[bytes]:
    """Write four images without labels for each kind of source in `SOURCES`, and return them."""
    files = sorted((root / "photos").iterdir())
    found = [file.read_bytes() for file in files]
    (root / "table.csv").write_text("path\n" + "".join(f"photos/{file.name}\n" for file in files))
    write_tar(root / "a.tar", [(file.name, data) for file, data in zip(files, found, strict=True)])
    write_table(root / "a.parquet", {"image": images([(data, None) for data in found])})
    module = "from pathlib import Path\nclass Images(list):\n    def __init__(self):\n        super().__init__("
    (root / "unlabeled.py").write_text(f"{module}{found!r})\n")
    return found


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_reads_images_without_labels(root: Path, kind: str) -> None:
    wanted = write_unlabeled(root)
    src, out = SOURCES[kind].format(root), root / "out"
    failed = prep("build", kind, src, out, *FLAGS)
    if kind != "list":  # whose folders are classes
        assert (failed.returncode, "pass --no-labels" in failed.stderr) == (1, True)
    done = prep("build", kind, src, root / "unlabeled", "--no-labels", *FLAGS)
    assert (done.returncode, "without labels" in done.stdout, "4 rows in 1 class" in done.stdout) == (0, True, True)
    store = open_store(root / "unlabeled")
    assert (store.labels.tolist(), [cls.name for cls in store.classes]) == ([0] * 4, ["unlabeled"])
    assert [sample.digest for sample in store.samples] == [xxhash.xxh3_64_hexdigest(data) for data in wanted]
    flip(root / "unlabeled/images-00000.npy", DATA_OFFSET + 100)
    assert "repaired 1 row" in prep("repair", root / "unlabeled", "--from", src).stdout


def test_folder_of_splits_is_read_without_labels(root: Path) -> None:
    for path in ("train/a", "test/a"):
        (root / "splits" / path).mkdir(parents=True)
        (root / "splits" / path / "0.jpg").write_bytes(jpeg(30, 20))
    for command in (
        ("plan", "folder", root / "splits", root / "out", "--no-labels", *FLAGS[:2]),
        ("work", root / "out"),
    ):
        assert prep(*command).returncode == 0
    assert "2 rows in 1 class" in prep("finish", root / "out").stdout


def test_webdataset_without_labels(tmp_path: Path) -> None:
    parts = (sample(f"{number}", jpeg(30, 20, seed=number), json={"age": number}) for number in range(3))
    write_tar(tmp_path / "test.tar", chain(*parts))
    assert {entry.problem for entry in open_webdataset(tmp_path / "test.tar").scan().entries} == {"no label"}
    source = open_webdataset(tmp_path / "test.tar", no_labels=True, column=["age"])
    assert [(entry.label, entry.problem, entry.values) for entry in source.scan().entries] == [
        (0, "", (n,)) for n in range(3)
    ]
    done = prep("build", "webdataset", tmp_path / "test.tar", tmp_path / "out", "--no-labels", *FLAGS)
    assert (done.returncode, "without labels" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"file_name": "0000.jpg", "label": 1}\n', "JSON, such as that of COCO, or metadata.jsonl"),
        ('["0000.jpg", "0001.jpg"]\n', "JSON, such as"),
        (
            "path;label\n0000.jpg;1\n",
            "semicolons between the columns, as Excel may write them; expected commas or tabs; with pandas, read_csv",
        ),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n",
            "a Git LFS pointer instead of the file; run: git lfs pull",
        ),
    ],
)
def test_other_formats_are_named(root: Path, text: str, message: str) -> None:
    assert_fails(build_list(root, text), 1, message)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n",
            "a Git LFS pointer instead of the file",
        ),
        (bz2.compress(b"path,label\n" * 99), "compressed with bzip2, .*; unpack it first: bzip2 -dc /"),
    ],
)
def test_what_stands_for_a_file_is_named(content: bytes, found: str, root: Path) -> None:
    for kind, name in (("list", "a.csv"), ("webdataset", "a.tar"), ("parquet", "a.parquet"), ("imagenet", "a.zip")):
        top = root / kind
        top.mkdir()
        name = ZIP if kind == "imagenet" else name
        (top / name).write_bytes(content)
        with pytest.raises(BuildError, match=f"{re.escape(name)}: {found}"):
            find_opener(kind)(top if kind == "imagenet" else top / name).listing()


@pytest.mark.parametrize("table", ["0000.jpg;1\n", "photos/0000.jpg;1\n", "1;0000.jpg\n", "0000.jpg|1\n"])
def test_other_separators_without_a_header_are_named(root: Path, table: str) -> None:
    for flags in ((), ("--no-labels",)):
        failed = build_list(root, table + table.replace("0000", "0001"), *flags)
        found = f"the path contains {'|' if '|' in table else ';'!r}; if that separates columns, write commas or tabs"
        assert (failed.returncode, found in failed.stderr) == (1, True), failed.stderr


def test_list_in_another_encoding_is_named(root: Path) -> None:
    (root / "photos/ü.jpg").write_bytes(jpeg(30, 20))
    (root / "table.csv").write_bytes("path,label\n0000.jpg,1\nü.jpg,0\n".encode("latin-1"))
    [_, entry] = open_list(root / "table.csv", root=root / "photos").scan().entries
    assert entry.problem.endswith("the path is not UTF-8; convert the list, for example with: iconv -f LATIN1 -t UTF-8")


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


def test_class_list_of_numbers_names_the_labels_or_is_refused(root: Path) -> None:
    labels = ["2", "10", "0", "1"]
    table = "path,label\n" + "".join(f"{number:04}.jpg,{label}\n" for number, label in enumerate(labels))
    (root / "classes.txt").write_text("0\n1\n10\n2\n")  # sorted as text
    assert build_list(root, table, "--classes", root / "classes.txt").returncode == 0
    store = open_store(root / "out")
    assert [store.classes[label].name for label in store.labels.tolist()] == labels
    (root / "classes.txt").write_text("1\n2\n10\n")
    message = (
        "line 4: label 0 is not in the class list, but label 2 is, as class 1; list all labels there, or write class"
    )
    with pytest.raises(BuildError, match=message):
        open_list(root / "table.csv", root=root / "photos", classes=["1", "2", "10"]).listing()
    floats = "path,label\n" + "".join(f"{number:04}.jpg,{number}.0\n" for number in range(3))
    (root / "table.csv").write_text(floats)
    with pytest.raises(BuildError, match=r"label 0\.0 is not in the class list, but label 0 is, as class 1; list all"):
        open_list(root / "table.csv", root=root / "photos", classes=["2", "0", "1"]).listing()
    same = open_list(root / "table.csv", root=root / "photos", classes=["00", "01", "02"]).listing()
    assert same.records["label"].tolist() == [0, 1, 2]
    (root / "table.csv").write_text(table.replace(",10", ",3"))
    numbered = open_list(root / "table.csv", root=root / "photos", classes=["0", "1", "2", "3"]).listing()
    assert numbered.records["label"].tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize("name", ["rows", "images"])
def test_column_with_the_name_of_a_part_of_a_batch_is_refused(root: Path, name: str) -> None:
    failed = build_list(root, f"path,{name}\n0000.jpg,1\n", "--column", name, "--no-labels")
    assert_fails(failed, 1, f"column name '{name}': batch['{name}'] is something else in training")


def test_classes_that_may_be_wrong_are_named(root: Path) -> None:
    table = "path,label\n0000.jpg,nv\n0001.jpg,NV\n0002.jpg,mel\nnone.jpg,bcc\n"
    done = build_list(root, table, "--max-bad", 1)
    assert (done.returncode, "the classes 'NV' and 'nv' differ only in case or blanks" in done.stderr) == (0, True), (
        done.stderr
    )
    assert "1 of 4 classes have no images (first 1, 'bcc')" in done.stderr  # only on a line that was rejected
    assert "3 rows in 3 of 4 classes" in done.stdout
    failed = build_list(root, "path,label\n0000.jpg,0\n0001.jpg,1\n0002.jpg,0 1\n")
    advice = "if '0 1' is several labels, see docs/how-to/data/multi-label.md; otherwise correct it"
    assert (failed.returncode, advice in failed.stderr) == (1, True), failed.stderr


def test_class_whose_images_cannot_be_decoded_is_named(root: Path) -> None:
    (root / "photos/0001.jpg").write_bytes(b"no image")
    done = build_list(root, "path,label\n0000.jpg,cat\n0001.jpg,dog\n0002.jpg,cow\n0003.jpg,cow\n", "--max-bad", 1)
    assert done.returncode == 0
    assert "1 of 3 classes have no rows (first 2, 'dog'); see rejects.tsv" in done.stderr
    assert open_store(root / "out").labels.tolist().count(1) == 2
