"""Sources that are datasets: torch's, torchvision's and Hugging Face's, named by the function that makes them."""

import inspect
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest
from PIL import Image

from decodeonce.build import BoxRules, Recipe, WorkSettings, build, find_map, finish, is_built, make_plan, work
from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.sources.boxed import BoxedSource
from decodeonce.prep.sources.dataset import DatasetSource, encoded, open_dataset
from decodeonce.sources import Entry, FolderSource, Undecodable
from decodeonce.store import open_store
from decodeonce.store.manifest import read_manifest
from decodeonce.store.table import read_rejects
from tests.command import prep, printed
from tests.docs.pages import ROOT, blocks
from tests.forms.all_forms import PICS
from tests.forms.boxed import xml
from tests.forms.folder import write_folder
from tests.images import encoded as encoded_image
from tests.images import jpeg, tree_bytes
from tests.libraries import library
from tests.packages import NOT_DEV
from tests.prep.building import build_in_process
from tests.store.signing import damage_rows
from tools.libraries import define_operators

RECIPE = Recipe(height=24, width=20)
IN_ORDER = Recipe(height=8, width=8, shuffle_seed=None)
ONE_ROW_PER_BLOCK = Recipe(height=600, width=600)
PHOTOS = """
from pathlib import Path
import numpy as np
from PIL import Image

paths = sorted(Path(__file__).with_name("photos").rglob("*.JPEG"))

class Photos:
    classes = sorted({path.parent.name for path in paths})

    def __len__(self):
        return len(paths)

    def image(self, path):
        return path.read_bytes()

    def __getitem__(self, index):
        return self.image(paths[index]), self.classes.index(paths[index].parent.name)

class Opened(Photos):
    def image(self, path):
        return Image.open(path)

class Converted(Photos):  # as torchvision's ImageFolder
    def image(self, path):
        with path.open("rb") as file:
            return Image.open(file).convert("RGB")

class Arrays(Photos):
    def image(self, path):
        return np.asarray(Image.open(path).convert("RGB"))
"""
ENDS = """
import os

class Ends(Photos):
    def image(self, path):
        return os._exit(7) if path == paths[3] else super().image(path)
"""
DATASET = """
import os
import numpy as np

class Dataset:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        if isinstance(item, BaseException):
            raise item
        return item

def gray(level, height=8, width=8):
    return np.full((height, width), level, np.uint8)

"""
# Writes the index of each sample that is read into reads.txt.
RECORDED = """
from pathlib import Path

def record(index):
    with Path(__file__).with_name("reads.txt").open("a") as file:
        file.write(f"{index} ")

class Recorded(Dataset):
    def __getitem__(self, index):
        record(index)
        return super().__getitem__(index)
"""
Write = Callable[[str], Path]
SCORED = "(gray(1), 0, {'score': 1})"
_numbers = count()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a module and returns its path without suffix."""

    def written(text: str) -> Path:
        path = tmp_path / f"data_of_a_user_{next(_numbers)}"
        path.with_suffix(".py").write_text(text)
        return path

    return written


def source_of(write: Write, items: str, **options: object) -> DatasetSource:
    """Return the source of a Dataset of these items."""
    return open_dataset(f"{write(f'{DATASET}def make(): return Dataset({items})')}:make", **options)  # type: ignore[arg-type]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos/train", [*PICS, PICS[0]._replace(stem="gray", data=jpeg(50, 40, mode="L"))])


def check_equal(out: Path, folder: Path, *, encoded: bool) -> None:
    """Check that two stores have the same rows, labels and classes, and the same digests if images were `encoded`."""
    found, wanted = open_store(out), open_store(folder)
    np.testing.assert_array_equal(found.images[:], wanted.images[:])
    np.testing.assert_array_equal(found.labels, wanted.labels)
    assert [cls.name for cls in found.classes] == [cls.name for cls in wanted.classes]
    if encoded:
        assert [sample.digest for sample in found.samples] == [sample.digest for sample in wanted.samples]


@pytest.mark.parametrize("name", ["Photos", "Opened", "Converted", "Arrays"])
def test_rows_equal_those_of_the_folder(write: Write, photos: Path, tmp_path: Path, name: str) -> None:
    wanted = build_in_process(FolderSource(photos), tmp_path / "folder", RECIPE)
    out = build_in_process(DatasetSource(f"{write(PHOTOS)}:{name}"), tmp_path / "out", RECIPE)
    check_equal(out, wanted, encoded=name == "Photos")
    assert read_manifest(out / "store.json").source["kind"] == "dataset"


@pytest.mark.long
def test_page_builds_from_a_hugging_face_dataset(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason=NOT_DEV.format("datasets"))
    names = sorted(path.name for path in photos.iterdir())
    paths = [path for name in names for path in sorted((photos / name).iterdir())]
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=names), score=datasets.Value("int32")
    )
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in paths[1:]]
    columns: dict[str, list[Any]] = {
        "image": [str(paths[0]), *images],
        "label": [path.parent.name for path in paths],
        "score": list(range(len(paths))),
    }
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "photos-hf")
    monkeypatch.chdir(tmp_path)
    module = write_page_module(tmp_path, "hugging-face.md", "saved")
    wanted = build_in_process(FolderSource(photos), tmp_path / "folder", RECIPE)
    source = open_dataset(f"{module}:photos", column=["score"])
    assert source.found == f"{len(paths)} samples, images from image.bytes, labels from label"
    out = build_in_process(source, tmp_path / "out", RECIPE)
    check_equal(out, wanted, encoded=True)
    assert open_store(out).columns["score"].tolist() == list(range(len(paths)))

    assert source.listing().warnings == []
    left = "columns that are not kept: score; --column NAME keeps a column of numbers"
    assert open_dataset(f"{module}:photos").listing().warnings == [left]

    alone = datasets.Dataset.from_dict({"image": images, "score": [0.5] * len(images)})
    alone.cast_column("image", datasets.Image()).save_to_disk(tmp_path / "alone")
    (tmp_path / "alone.py").write_text(
        "def f():\n    from datasets import load_from_disk\n    return load_from_disk('alone')"
    )
    for options in ({"column": ["score"]}, {"no_labels": True}):
        unlabeled = open_dataset(f"{tmp_path}/alone:f", **options)
        assert unlabeled.found == f"{len(images)} samples, images from image.bytes, without labels"
        out = build_in_process(unlabeled, tmp_path / next(iter(options)), RECIPE)
        assert open_store(out).labels.tolist() == [0] * len(images)
    is_odd = [k % 2 == 1 for k in range(len(images))]
    wrong = datasets.Dataset.from_dict({"image": images, "score": [0.5] * len(images), "label": is_odd})
    wrong.cast_column("image", datasets.Image()).save_to_disk(tmp_path / "wrong")
    (tmp_path / "wrong.py").write_text((tmp_path / "alone.py").read_text().replace("alone", "wrong"))
    with pytest.raises(BuildError, match=r"wrong:f: no column looks like labels; .* label \(bool\)"):
        open_dataset(f"{tmp_path}/wrong:f", column=["score"])

    plan = make_plan(open_dataset(f"{module}:photos"), tmp_path / "plan", RECIPE)
    columns["score"][0] = 7
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "photos-hf")
    with pytest.raises(BuildError, match=r"saved_\d+:photos: changed since the plan was made \(now 11 samples "):
        plan.source().read(plan.samples.entry(0))
    with pytest.raises(BuildError, match="the source changed since the plan: 11 changed"):
        make_plan(open_dataset(f"{module}:photos"), tmp_path / "plan", RECIPE)
    (tmp_path / "split.py").write_text(SPLIT)
    plan = make_plan(open_dataset(f"{tmp_path}/split:f"), tmp_path / "split", RECIPE)
    with pytest.raises(BuildError, match=r"split:f: changed since the plan .* pass a seed to random splits"):
        plan.source().read(plan.samples.entry(0))
    (tmp_path / "transformed.py").write_text(SPLIT.replace("train_test_split(0.2)['train']", "with_transform(id)"))
    with pytest.raises(BuildError, match=r"transformed:f: the dataset has a transform, .* wrap the dataset in a class"):
        open_dataset(f"{tmp_path}/transformed:f")


def write_page_module(folder: Path, page: str, name: str, before: str = "") -> Path:
    """Write a module of a recipe below the text `before`; return its path without suffix."""
    [text] = [block.text for block in blocks(ROOT / "docs/how-to/data" / page) if f"# {name}.py" in block.text]
    path = folder / f"{name}_{next(_numbers)}"
    path.with_suffix(".py").write_text(before + text)
    return path


SPLIT = """
def f():
    from datasets import load_from_disk
    return load_from_disk("photos-hf").train_test_split(0.2)['train']
"""


@pytest.mark.long
def test_page_builds_from_torchvision(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library("torchvision")
    monkeypatch.chdir(tmp_path)
    operators = f"{inspect.getsource(define_operators)}\n\ndefine_operators()\n"  # workers cannot import tools
    module = write_page_module(tmp_path, "dataset-object.md", "mydata", operators)
    wanted = build_in_process(FolderSource(photos), tmp_path / "folder", RECIPE)
    for name in ("image_folder", "image_files"):
        out = build_in_process(DatasetSource(f"{module}:{name}"), tmp_path / name, RECIPE)
        check_equal(out, wanted, encoded=name == "image_files")


def test_every_kind_of_image_becomes_its_pixels() -> None:
    rng = np.random.default_rng(0)
    rgb, gray = rng.integers(0, 256, (5, 7, 3), np.uint8), rng.integers(0, 256, (5, 7), np.uint8)
    deep = rng.integers(0, 65536, (5, 7), np.uint16)
    decoder = Decoder(Recipe(height=5, width=7))
    kinds: list[tuple[object, np.ndarray[Any, Any], str]] = [
        (rgb, rgb, ""),
        (rgb[:, ::-1], rgb[:, ::-1], ""),
        (gray, gray, "gray"),
        (gray[..., None], gray, "gray"),
        (memoryview(encoded_image(Image.fromarray(rgb), "PNG")), rgb, ""),
        (Image.fromarray(rgb), rgb, ""),
        (Image.fromarray(gray), gray, "gray"),
        (Image.fromarray(deep), deep >> 8, "16 bit"),
        (Image.fromarray(gray).convert("1"), np.asarray(Image.fromarray(gray).convert("1").convert("L")), ""),
        *(
            (image, np.asarray(image.convert("RGB")), "")
            for image in map(Image.fromarray(rgb).convert, ("P", "RGBA", "CMYK"))
        ),
    ]
    for image, pixels, unusual in kinds:
        row = decoder.row(encoded(image), Entry(b"0", 0, 0, 0))
        wanted = pixels if pixels.ndim == 3 else np.stack([pixels] * 3, axis=2)
        np.testing.assert_array_equal(np.frombuffer(row.pixels, np.uint8).reshape(5, 7, 3), wanted)
        assert row.unusual == unusual


def test_other_images_are_refused() -> None:
    for image, reason in (
        (None, "image is NoneType, expected a PIL image, a uint8 array"),
        (np.zeros((3, 4, 4), np.uint8), r"image is uint8 \(3, 4, 4\), expected"),
        (np.zeros((4, 4, 3), np.float32), r"image is float32 \(4, 4, 3\), expected"),
        (Image.new("F", (4, 4)), "floating point pixels, of no known range"),
        (Image.new("I", (4, 4)), "32-bit pixels, of no known range"),
    ):
        with pytest.raises(Undecodable, match=reason):
            encoded(image)


def test_masked_values_are_refused_and_arrays_without_them_are_stored(write: Write, tmp_path: Path) -> None:
    some, none = "np.ma.masked_where(np.eye(8) == 1, gray(9))", "np.ma.array(gray(9), mask=False)"
    plain = '{"mask": gray(9), "n": [1]}'
    items = f"""[
        ({none}, 0, {{"mask": {none}, "n": np.ma.array([7], mask=False)}}), ({some}, 0, {plain}),
        (gray(1), np.ma.array(3, mask=True), {plain}), (gray(1), 0, {{"mask": {some}, "n": [1]}})]"""
    out = build_in_process(source_of(write, items), tmp_path / "out", RECIPE)
    reasons = {one.source: one.reason for one in read_rejects(out / "rejects.tsv") if one.action == "rejected"}
    advice = "has masked values, which a row cannot have; fill them, for example with .filled(0)"
    assert reasons == {"1": f"image {advice}", "2": f"label {advice}", "3": f"mask {advice}"}
    store = open_store(out)
    assert (np.unique(store.images[0]).tolist(), store.columns["n"].tolist()) == ([9], [[7]])
    assert np.unique(store.paired["mask"][0]).tolist() == [9]
    for value in ("np.ma.masked", "np.ma.array([1, 2], mask=[0, 1])", "[1, np.ma.masked]"):
        with pytest.raises(BuildError, match=r":make\[0\]: column 'n': found (nothing|\[1, None\]), expected a number"):
            source_of(write, f'[(gray(1), 0, {{"n": {value}}})]')


def test_index_that_cannot_become_a_row_is_a_reject_by_name(write: Write, tmp_path: Path) -> None:
    items = """[
        (gray(1), 0), KeyError("five"), (b"", 0), (b"no image", 0), (gray(2), None), (gray(2), -1), (gray(2), 0.5),
        gray(3), (gray(4), 0, {}, 1), (gray(4), 0, 7), FileNotFoundError(2, "gone"), (gray(5), np.int64(1))]"""
    out = build_in_process(source_of(write, items), tmp_path / "out", RECIPE)
    reasons = {one.source: one.reason for one in read_rejects(out / "rejects.tsv") if one.action == "rejected"}
    expected = "expected (image, label) or (image, label, {'column': numbers}); without labels, pass --no-labels"
    others = "return other numbers as (image, None, {'column': numbers}), with --no-labels"
    assert reasons == {
        "1": "KeyError: 'five'",
        "2": "empty file",
        "3": reasons["3"],
        "4": "no label",
        "5": "label -1, expected 0 or more",
        "6": f"label is 0.5, expected a class number or name; {others}",
        "7": f"found a ndarray, {expected}",
        "8": f"found a tuple of 4, {expected}",
        "9": "third value is a int, expected {'column': numbers}",
        "10": "FileNotFoundError: [Errno 2] gone",
    }
    assert [sample.source for sample in open_store(out).samples] in (["0", "11"], ["11", "0"])


def test_images_with_channels_first_and_classes_with_arguments_are_named_with_what_to_do(write: Write) -> None:
    with pytest.raises(
        BuildError, match=r"uint8 \(3, 8, 8\), expected .*; return image\.permute\(1, 2, 0\), or for NumPy"
    ):
        source_of(write, "[(np.zeros((3, 8, 8), np.uint8), 0)]")
    module = write("class Birds:\n    def __init__(self, root): pass")
    with pytest.raises(BuildError, match="'root'; write a function that calls it with its arguments"):
        open_dataset(f"{module}:Birds")


def test_texts_of_digits_are_names_of_given_classes_or_refused(write: Write, tmp_path: Path) -> None:
    message = r"make\[0\]: label '2' is class 0 by name, and class 2 by number; return class numbers, or names that are"
    for items, classes, labels in (
        ("[(gray(1), '2'), (gray(2), '0')]", ["2", "0", "1"], None),
        ("[(gray(1), 2), (gray(2), 0)]", ["2", "0", "1"], [2, 0]),
        ("[(gray(1), '2'), (gray(2), '0')]", ["0", "1", "2"], [2, 0]),
        ("[(gray(1), '2'), (gray(2), 'cat')]", ["2", "cat"], None),  # without a cat, 2 would be a number
    ):
        source, out = source_of(write, items, classes=classes), tmp_path / f"{classes[1]}{labels}"
        if labels is None:
            with pytest.raises(BuildError, match=message):
                build_in_process(source, out, IN_ORDER)
        else:
            assert open_store(build_in_process(source, out, IN_ORDER)).labels.tolist() == labels


def test_failure_of_the_file_system_stops_the_build_and_rejects_nothing(write: Write, tmp_path: Path) -> None:
    for items, error, message in (
        ("(gray(1), 0), OSError(116, 'Stale')", Stopped, r":make\[1\]: Stale; run the same command again"),
        ("(gray(1), 0), PermissionError(13, 'Denied')", BuildError, r":make\[1\]: Denied; change its permissions"),
    ):
        with pytest.raises(error, match=message):
            build_in_process(source_of(write, f"[{items}]"), tmp_path / error.__name__, RECIPE)


def test_dataset_of_another_length_is_noticed(write: Write, tmp_path: Path) -> None:
    module = write(f"{DATASET}def make(): return Dataset(eval(open(__file__ + '.items').read()))")
    items = Path(f"{module}.py.items")
    items.write_text(f"[{SCORED}, (gray(2), 1, {{'score': 2}})]")
    plan = make_plan(DatasetSource(f"{module}:make"), tmp_path / "out", IN_ORDER)
    make_plan(DatasetSource(f"{module}:make"), tmp_path / "out", IN_ORDER)  # nothing has changed
    items.write_text(f"[{SCORED}]")
    with pytest.raises(BuildError, match=r"changed since the plan was made \(now 1 samples; then 2 samples\)"):
        plan.source().read(plan.samples.entry(1))
    with pytest.raises(BuildError, match="the source changed since the plan: 1 gone"):
        make_plan(DatasetSource(f"{module}:make"), tmp_path / "out", IN_ORDER)


def test_flag_for_other_datasets_is_refused(write: Write) -> None:
    with pytest.raises(BuildError, match="--label-column is for Hugging Face datasets, and this is a Dataset"):
        source_of(write, "[(gray(0), 0)]", label_column="x")


def test_first_sample_that_can_be_read_names_the_columns(write: Write, tmp_path: Path) -> None:
    source = source_of(write, "[KeyError('gone'), (b'', 0), (gray(1), 0, {'score': 1}), (gray(2), 0, {'score': 2})]")
    out = build_in_process(source, tmp_path / "out", IN_ORDER)
    assert sorted(open_store(out).columns["score"].tolist()) == [1, 2]
    assert [one.reason for one in read_rejects(out / "rejects.tsv") if one.action == "rejected"] == [
        "KeyError: 'gone'",
        "empty file",
    ]
    assert list(source_of(write, "[]").scan().entries) == []
    with pytest.raises(BuildError, match=r":make\[0\]: KeyError: 0; expected a sample that .* among the first 8;"):
        source_of(write, "[KeyError(n) for n in range(8)] + [(gray(1), 0)]")


def test_labels_of_any_kind_can_be_ignored(write: Write, tmp_path: Path) -> None:
    items = "[gray(1), (gray(2),), (gray(3), {'boxes': []}), (gray(4), -1), (gray(5), 'cat', {'score': 1})]"
    source = source_of(write, items, no_labels=True, column=[])
    store = open_store(build_in_process(source, tmp_path / "out", IN_ORDER))
    assert (store.labels.tolist(), [cls.name for cls in store.classes]) == ([0] * 5, ["unlabeled"])
    assert source.found == "5 samples without labels"
    detection = source_of(write, "[(gray(1), {'mask': gray(2)})]", no_labels=True)
    assert detection.found == "1 sample without its dict; (image, None, dict) would keep it"


@pytest.mark.parametrize("more", ["'age': 7", "'mask': gray(1)"])
def test_column_or_mask_that_the_first_sample_lacks_is_an_error(write: Write, tmp_path: Path, more: str) -> None:
    items = f"[{SCORED}, (gray(2), 1, {{'score': 2, {more}}})]"
    name = more.split("'")[1]
    with pytest.raises(
        BuildError, match=rf"make\[1\]: has '{name}', which the first sample lacks; .* with --column NAME"
    ):
        build_in_process(source_of(write, items), tmp_path / "out", IN_ORDER)
    chosen = build_in_process(source_of(write, items, column=["score"]), tmp_path / "chosen", IN_ORDER)
    assert open_store(chosen).columns["score"].tolist() == [1, 2]


def test_columns_and_labels(write: Write, tmp_path: Path) -> None:
    items = """[(gray(n), name, {"score": np.float32(n / 2), "tokens": np.array([n, n]), "other": 1})
                for n, name in enumerate(["cat", "dog", "cat"])]"""
    out = build_in_process(source_of(write, items), tmp_path / "out", Recipe(height=8, width=8))
    store = open_store(out)
    assert [cls.name for cls in store.classes] == ["cat", "dog"]
    assert store.labels.tolist() == [0, 1, 0]
    assert store.columns["score"].tolist() == [0, 0.5, 1]
    assert store.columns["tokens"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert sorted(store.columns) == ["other", "score", "tokens"]
    source = source_of(write, items, column=["score"], classes=["dog", "cat"])
    store = open_store(build_in_process(source, tmp_path / "chosen", IN_ORDER))
    assert (store.labels.tolist(), store.columns["score"].tolist()) == ([1, 0, 1], [0.0, 0.5, 1.0])
    with pytest.raises(BuildError, match=r"make\[1\]: column 'score': found nothing, expected a number"):
        build_in_process(source_of(write, "[(gray(0), 0, {'score': 1}), (gray(1), 0)]"), tmp_path / "missing", IN_ORDER)
    with pytest.raises(BuildError, match=r"make\[0\]: column 'text': found 'a cat', expected a number"):
        source_of(write, "[(gray(0), 0, {'text': 'a cat'})]")
    module = write(f"{DATASET}def make(): data = Dataset([]); data.classes = [('cat',), ('cat',)]; return data")
    with pytest.raises(BuildError, match=r"the classes of .*:make contains 'cat' twice"):
        DatasetSource(f"{module}:make")


NAMES = ["dog", "cat", "été", "a", "b", "cat", "dog", "z", "a", "cat", "10", "x"]
NAMED = f"[(gray(n, 40, 30), name, {{'score': n}}) for n, name in enumerate({NAMES})]"


def reads(module: Path) -> Counter[int]:
    """Return how often each sample of a dataset in the module was read since the last call."""
    path = module.with_name("reads.txt")
    counts = Counter(map(int, path.read_text().split()))
    path.unlink()
    return counts


def test_every_sample_is_read_once_for_its_row(write: Write, tmp_path: Path) -> None:
    module = write(f"{DATASET}{RECORDED}def make(): return Recorded({NAMED.replace('10', 'ten')})")
    made = build(
        open_dataset(f"{module}:make"), tmp_path / "out", ONE_ROW_PER_BLOCK, WorkSettings(workers=2), expect=12
    )
    counts, names = reads(module), sorted({*NAMES} - {"10"} | {"ten"}, key=str.encode)
    assert [cls.name for cls in made.classes] == names
    assert (counts.pop(0), {*counts.values()}, len(counts)) == (2, {1}, 11)  # the first also tells the columns
    assert is_built(open_dataset(f"{module}:make"), tmp_path / "out", ONE_ROW_PER_BLOCK)
    assert reads(module) == {0: 1}
    with pytest.raises(BuildError, match=r"already holds a different finished store: .* differs from its source in"):
        is_built(open_dataset(f"{module}:make", classes=names), tmp_path / "out", ONE_ROW_PER_BLOCK)
    with pytest.raises(BuildError, match=r"12 images found, but --expect is 11"):
        make_plan(open_dataset(f"{module}:make"), tmp_path / "expected", ONE_ROW_PER_BLOCK, expect=11)


def test_labels_in_any_order_give_the_same_store(write: Write, tmp_path: Path) -> None:
    text = f"{DATASET}def make(): return Dataset({NAMED.replace('10', 'ten')})"
    wanted = tree_bytes(build_in_process(open_dataset(f"{write(text)}:make"), tmp_path / "one", ONE_ROW_PER_BLOCK))
    make_plan(open_dataset(f"{write(text)}:make"), tmp_path / "out", ONE_ROW_PER_BLOCK)
    for task in (2, 0, 1):
        work(tmp_path / "out", WorkSettings(workers=1, task=task, tasks=3))
    finish(tmp_path / "out")
    assert tree_bytes(tmp_path / "out") == wanted


def test_stopped_build_resumes_with_the_labels_of_its_blocks(write: Write, tmp_path: Path) -> None:
    stops = """
def make(): return Stops(ITEMS)

class Stops(Recorded):
    def __getitem__(self, index):
        if index == 7 and not Path(__file__).with_name("restored").exists():
            raise OSError(116, "Stale")
        return super().__getitem__(index)
"""
    module = write(DATASET + RECORDED + stops.replace("ITEMS", NAMED.replace("10", "ten")))
    recipe = replace(ONE_ROW_PER_BLOCK, shuffle_seed=None)
    with pytest.raises(Stopped, match=r":make\[7\]: Stale"):
        build(open_dataset(f"{module}:make"), tmp_path / "out", recipe, WorkSettings(workers=1))
    module.with_name("restored").touch()
    build(open_dataset(f"{module}:make"), tmp_path / "out", recipe, WorkSettings(workers=1))
    counts = reads(module)
    assert (counts.pop(0), {*counts.values()}, len(counts)) == (3, {1}, 11)
    wanted = build_in_process(open_dataset(f"{module}:make"), tmp_path / "once", recipe)
    assert tree_bytes(tmp_path / "out") == tree_bytes(wanted)


def test_labels_that_do_not_fit_together_stop_the_finish(write: Write, tmp_path: Path) -> None:
    items, out = "[(gray(1), 0), (gray(2), None), (gray(3), ''), (gray(4), 'a cat'), (gray(5), 1)]", tmp_path / "out"
    mixed = "label 'a cat' is not a whole number, but 2 of 3 different labels are; correct it, or list all class names"
    with pytest.raises(BuildError, match=rf":make\[3\]: {mixed} with --classes FILE; then remove OUT and build again"):
        build_in_process(source_of(write, items), out, IN_ORDER)
    with pytest.raises(BuildError, match=r"run: rm -r .*, then this command again \(decoded so far: 1 of 1 block\)"):
        make_plan(source_of(write, items, classes=["0", "1", "a cat"]), out, IN_ORDER)
    rmtree(out)
    store = open_store(build_in_process(source_of(write, items, classes=["0", "1", "a cat"]), out, IN_ORDER))
    assert sorted(store.labels.tolist()) == [0, 1, 2]
    assert [one.reason for one in read_rejects(out / "rejects.tsv") if one.action == "rejected"] == ["no label"] * 2


def test_label_that_no_class_has_stops_the_worker(write: Write, tmp_path: Path) -> None:
    for label, message in (
        ("'bird'", "class 'bird' is not in the class list; add it at the end, and build all stores"),
        ("2", "label 2, expected 0 to 1; the class list has 2 names, expected one for each class"),
    ):
        source = source_of(write, f"[(gray(1), 'cat'), (gray(2), {label})]", classes=["cat", "dog"])
        plan = make_plan(source, tmp_path / label, IN_ORDER)
        with pytest.raises(BuildError, match=rf"make\[1\]: {message}"):
            plan.source().read(plan.samples.entry(1))
    signs = source_of(write, "[(gray(1), -1), (gray(2), 0)]", classes=["-1", "0"])
    with pytest.raises(BuildError, match=r"make\[0\]: label -1, expected 0 or more, because all labels are numbers"):
        build_in_process(signs, tmp_path / "signs", IN_ORDER)


def test_values_of_all_blocks_decide_on_a_column(write: Write, tmp_path: Path) -> None:
    items = "[(gray(n, 40, 30), 0, {'score': n / 2 if n == 3 else n, 'pair': [n, 2**24 + n]}) for n in range(4)]"
    out = build_in_process(source_of(write, items), tmp_path / "out", replace(ONE_ROW_PER_BLOCK, shuffle_seed=None))
    columns = open_store(out).columns
    assert (columns["score"].tolist(), columns["score"].dtype.name) == ([0, 1, 2, 1.5], "float32")
    assert (columns["pair"].tolist(), columns["pair"].dtype.name) == ([[n, 2**24 + n] for n in range(4)], "int64")
    lists = source_of(write, "[(gray(1), 0, {'list': [1]}), (gray(2), 0, {'list': [1, 2]})]")
    plan = make_plan(lists, tmp_path / "lists", replace(ONE_ROW_PER_BLOCK, shuffle_seed=None))
    with pytest.raises(
        BuildError, match=r"make\[1\]: column 'list': found \[1, 2\], expected a list of 1 number, like"
    ):
        work(plan.paths.root, WorkSettings(workers=1, task=1, tasks=2))  # it sees only the second sample


def test_samples_that_are_rejected_for_their_label_do_not_count_for_columns(write: Write, tmp_path: Path) -> None:
    items = "[(gray(n), -1 if n == 3 else n, {} if n == 3 else {'a': n}) for n in range(5)]"
    store = open_store(
        build_in_process(source_of(write, items), tmp_path / "out", replace(IN_ORDER, shuffle_seed=None))
    )
    assert (store.columns["a"].tolist(), store.labels.tolist()) == ([0, 1, 2, 4], [0, 1, 2, 4])


def test_labels_that_were_never_read_are_counted(
    write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    items = "[(gray(1), 'b'), (gray(2), 'a', 'no columns'), (gray(3), 'c')]"
    for name, options in (("given", {"classes": ["a", "b", "c"]}), ("found", {})):
        store = open_store(build_in_process(source_of(write, items, **options), tmp_path / name, IN_ORDER))
        said = [text for text in caplog.messages if "unknown" in text]
        assert ([cls.name for cls in store.classes], len(said)) == ([*"abc"], 0) if options else ([*"bc"], 1)
    assert "make: the labels of 1 sample are unknown (first data_of_a_user" in said[0]
    assert "make[1], see rejects.tsv); if only these have a label, it is not among the classes" in said[0]


def test_label_beyond_all_class_numbers_stops_the_task(write: Write, tmp_path: Path) -> None:
    source = source_of(write, "[(gray(1), 1), (gray(2), 2**21)]")
    plan = make_plan(source, tmp_path / "out", ONE_ROW_PER_BLOCK)
    with pytest.raises(BuildError, match=r"make\[1\]: label 2097152, expected 0 to 1048575"):
        work(plan.paths.root, WorkSettings(workers=1))


MAP = """
def named(pixels, sample):
    pixels[:] = 100 * sample.label + len(sample.class_name)
    return pixels
"""


def test_map_gets_a_class_that_does_not_depend_on_other_labels(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    recipe = replace(IN_ORDER, map=find_map(f"{write(MAP).name}:named"))
    items = "[(gray(1), 'a cat'), (gray(2), 1)]"
    with pytest.raises(BuildError, match=r"make\[0\]: a map gets the class of its image, .* build with --classes FILE"):
        build_in_process(source_of(write, items), tmp_path / "unknown", recipe)
    numbers = source_of(write, "[(gray(1), 0), (gray(2), 1)]", classes=["a cat", "dog"])
    store = open_store(build_in_process(numbers, tmp_path / "numbers", recipe))
    assert (store.images[:, 0, 0, 0].tolist(), store.labels.tolist()) == ([5, 103], [0, 1])
    ignored = source_of(write, items, no_labels=True)
    assert open_store(build_in_process(ignored, tmp_path / "ignored", recipe)).images[0, 0, 0, 0] == len("unlabeled")
    with pytest.raises(
        BuildError, match=r"make\[1\]: a map gets the class of its image, but that of label '1' depends"
    ):
        build_in_process(source_of(write, items, classes=["1", "a cat"]), tmp_path / "both", recipe)


def test_objects_and_whole_images_of_a_dataset_share_classes(write: Write, tmp_path: Path) -> None:
    (tmp_path / "boxes").mkdir()
    objects = [(name, (0, 0, 4, 4)) for name in ("zebra", "dog")]
    (tmp_path / "boxes/1.xml").write_text(xml(*objects, size=(8, 8)))
    items = "[(gray(1), 'dog', {'score': 7}), (gray(2), 'cat', {'score': 8})]"
    for rules, labels, classes in (
        (BoxRules(), [1, 2, 1], ["cat", "dog", "zebra"]),
        (BoxRules(keep=2), [1, 0], ["cat", "dog"]),
    ):
        source = BoxedSource(source_of(write, items), tmp_path / "boxes", rules)
        out = build_in_process(source, tmp_path / f"out{rules.keep}", replace(IN_ORDER, boxes=rules))
        store = open_store(out)
        assert (store.labels.tolist(), [cls.name for cls in store.classes]) == (labels, classes)
        assert store.columns["score"].tolist() == [7, 8, 8][: len(labels)]
        assert store.box_classes == (("dog", "zebra") if rules.keep else ())


def test_what_is_no_dataset_is_refused(write: Write) -> None:
    for text, message in (
        ("def make(): raise RuntimeError('no data here')", "calling it raised RuntimeError: no data here; reproduce"),
        ("def make(size): ...", "calling it raised TypeError: make.. missing 1 required positional argument"),
        ("def make(): return iter([])", "returned a list_iterator; expected an object with len.. and .index."),
        ("def make(): return {'train': [], 'val': []}", "returned a dictionary of train, val; return one of its"),
        ("make = 3", "has no function make"),
        ("import no_such_module", "No module named 'no_such_module'; install it, .*; data_of.* imports it"),
        ("from os import no_such_name", "raised ImportError: cannot import name 'no_such_name' .*; reproduce it with"),
        ("1 / 0", "raised ZeroDivisionError: division by zero; reproduce it with: .*python -c 'import data_of"),
    ):
        with pytest.raises(BuildError, match=message):
            DatasetSource(f"{write(text)}:make")
    for name, message in (("data.py", "expected package.module:function"), ("__main__:f", "cannot import __main__")):
        with pytest.raises(BuildError, match=message):
            open_dataset(name)


@pytest.mark.parametrize("folder", ["", "it's code/"])
def test_command_that_reproduces_an_error_raises_it(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, text in (("bad_at_import", "import math\n1 / 0"), ("bad_at_call", "def make(): 1 / 0")):
        (tmp_path / folder / f"{name}.py").write_text(text)
        failed = prep("build", "dataset", f"{folder}{name}:make", "out", cwd=tmp_path).stderr
        command = failed.partition("reproduce it with: ")[2]
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.stderr.endswith("ZeroDivisionError: division by zero\n"), done.stderr


def test_commands_work_with_a_dataset(write: Write, photos: Path, tmp_path: Path) -> None:
    name = f"{write(PHOTOS).name}:Photos"
    build_in_process(FolderSource(photos), tmp_path / "folder", RECIPE)
    command = ("build", "dataset", name, "out", "--size", "24x20", "--shuffle-seed", "none", "--workers", 1)
    done = prep(*command, cwd=tmp_path)
    assert (done.returncode, "1 unusual image was kept" in done.stdout and "11 rows in" in done.stdout) == (0, True)
    check_equal(tmp_path / "out", tmp_path / "folder", encoded=True)
    before = tree_bytes(tmp_path / "out")
    assert "already finished" in prep(*command, cwd=tmp_path).stdout
    damage_rows(tmp_path / "out", 0, 4)
    repaired = prep("repair", tmp_path / "out", "--from", tmp_path / name)  # from another folder
    assert "repaired 2 rows; 11 rows intact" in repaired.stdout, repaired
    assert tree_bytes(tmp_path / "out") == before
    printed("submit", "slurm", "build", "dataset", name, "jobs", "--tasks", 2, "--cpus", 2, cwd=tmp_path)
    assert f"plan dataset {name} jobs" in (tmp_path / "jobs.jobs/plan.slurm").read_text()


def test_dry_run_survives_a_dataset_that_ends_its_process(write: Write, photos: Path, tmp_path: Path) -> None:
    name = f"{write(PHOTOS + ENDS).name}:Ends"
    shown = printed("build", "dataset", name, "out", "--dry-run", cwd=tmp_path)
    assert (
        "sample: 11 of 11 images read; 1 of them cannot be decoded, first 3: the decoder died with exit status 7"
        in shown
    )
