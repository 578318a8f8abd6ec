"""Each recipe works as written, with files as it shows them: its commands, checks and training.

The recipes are docs/how-to/data and the page of buckets.

A text block before the first command lists files. Later ones show lines that the commands above them print. Python
blocks that begin with "# NAME.py" are files, and the others are run, for a single epoch.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from decodeonce import open_store
from decodeonce.store.table import read_rejects
from tests.cli.test_plugins import write_databases
from tests.command import printed, run
from tests.docs.pages import ROOT, SHELL, Block, blocks
from tests.docs.test_blocks import one_thread, run_block
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import encoded, exif, jpeg, reference_row
from tests.plugins import example_installed
from tests.remote.conftest import serving

__all__ = ["one_thread"]  # a fixture

pytestmark = pytest.mark.long

RECIPES = [ROOT / "docs/how-to/object-stores.md", *sorted((ROOT / "docs/how-to/data").glob("*.md"))]
PAGES = {page.stem: page for page in RECIPES if any(blocks(page))}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
COUNT = 40
CLASSES = ("cat", "dog")


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_lines(path: Path, *lines: str) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def write_folders(folder: Path, root: str = "photos/train", first: int = 1, count: int = COUNT) -> None:
    """Write images in a folder per class, numbered in each."""
    for number in range(count):
        name = f"{first + number // 2:03d}.jpg"
        put(folder / root / CLASSES[number % 2] / name, jpeg(80, 60, seed=number))


def write_splits(folder: Path) -> None:
    write_folders(folder)
    write_folders(folder, "photos/val", first=101, count=6)


def write_kaggle(folder: Path) -> None:
    """Write the tables of a competition, of photos and of species, and their images."""
    names = ["000bec18", "001513df", *(f"{number:08x}" for number in range(2, COUNT))]
    owners, breeds = ("Ann", "Bob", "Cleo", "Dan", "Ida"), ("boxer", "collie")
    lines = [f"{name},{breeds[n % 2]},{owners[n % len(owners)]}" for n, name in enumerate(names)]
    write_lines(folder / "train.csv", "id,breed,owner", *lines)
    write_lines(folder / "sample_submission.csv", "id,breed", *(f"{name},boxer" for name in names[:33]))
    for number, name in enumerate(names):
        put(folder / f"part_{1 + number % 2}" / f"{name}.jpg", jpeg(80, 60))
        put(folder / "test" / f"{name}.jpg", jpeg(80, 60))
    write_lines(folder / "photos.csv", "path,label", *(f"{number}.jpg,{number % 2}" for number in range(4)))
    for number in range(4):
        put(folder / "photos" / f"{number}.jpg", jpeg(80, 60, exif=exif(6)))
    write_species(folder)
    pairs = [f"{number}/l.jpg,{number}/r.jpg,{number % 2},{1 - number % 2}" for number in range(4)]
    write_lines(folder / "pairs.csv", "left,right,label,label_right", *pairs)
    for number in range(4):
        put(folder / f"views/{number}/l.jpg", jpeg(80, 60, seed=number))
        put(folder / f"views/{number}/r.jpg", jpeg(80, 60, seed=10 + number))
    write_lines(folder / "sites.csv", "site,region", "Oslo,north", "Rome,south")
    for number in range(4):
        put(folder / f"field/{('fox', 'owl')[number // 2]}_{('Oslo', 'Rome')[number % 2]}_{number}.jpg", jpeg(80, 60))


def write_species(folder: Path) -> None:
    """Write a JSON file as that of iNaturalist, and its images."""
    paths = [f"train/{number}.jpg" for number in range(4)]
    species = {
        "images": [{"id": 10 + number, "file_name": path} for number, path in enumerate(paths)],
        "annotations": [{"id": number, "image_id": 10 + number, "category_id": 7 - number % 2} for number in range(4)],
        "categories": [{"id": 7, "name": "Lynx lynx"}, {"id": 6, "name": "Apis mellifera"}, {"id": 1, "name": "Aix"}],
    }
    (folder / "train2021.json").write_text(json.dumps(species))
    for path in paths:
        put(folder / path, jpeg(80, 60))


def write_table_of(folder: Path, table: str, header: str, root: str, *rows: str) -> None:
    """Write a CSV table whose first column has the paths, with these rows at its start, and the images."""
    values = [*rows, *(rows[number % 2] for number in range(len(rows), COUNT))]
    paths = [f"{root}/{number:04d}.jpg" for number in range(1, COUNT + 1)]
    write_lines(folder / table, header, *(f"{path},{value}" for path, value in zip(paths, values, strict=True)))
    for path in paths:
        put(folder / path, jpeg(80, 60))


def write_ages(folder: Path) -> None:
    write_table_of(folder, "ages.csv", "image,age,name", "faces", "31.5,Ada", "4.25,Bob")


def write_labels(folder: Path) -> None:
    write_table_of(folder, "words.csv", "image,labels", "train", "sky sea", "people")
    with (folder / "words.csv").open("a") as file:
        print('train/0002.jpg,"[""sea"", ""people""]"', file=file)  # another line of an image
    ids = ("b7", "a1", "c3", "a1")
    write_lines(folder / "sample_submission.csv", "image,labels", *(f"{name},sky" for name in ids), "lost,sky")
    for name in ids:
        put(folder / f"test/{name}.jpg", jpeg(80, 60))
    write_table_of(folder, "train.csv", "image,sky,sea,people", "train", "1,1,0", "0,0,1")
    np.save(folder / "scores.npy", np.zeros(COUNT, np.float32))


def write_unlabeled(folder: Path) -> None:
    for number in range(1, COUNT + 1):
        name = f"photos/{'trip/' if number % 2 else ''}{(number + 1) // 2:04d}.jpg"
        data = jpeg(80, 60, seed=max(number, 3))  # the first three are copies
        put(folder / name, data if number % 9 else data[:-200])  # four are truncated


def write_phone(folder: Path) -> None:
    for year, suffix in (("2023/Oslo", "jpg"), ("2023/Rome", "jpg"), ("2024", "JPG")):
        for number in range(1, 17):
            photo = jpeg(80, 60, seed=number, exif=exif(6 if number % 2 else 1))
            put(folder / "phone" / year / f"IMG_{number:04d}.{suffix}", photo)


def write_x_rays(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        name = f"xrays/{('normal', 'pneumonia')[number % 2]}/{1 + number // 2:03d}.png"
        put(folder / name, encoded(Image.fromarray(rng.integers(0, 4096, (60, 80), np.uint16)), "PNG"))


def write_tars(folder: Path) -> None:
    for split, tars, classes in (("train", 4, CLASSES), ("val", 2, CLASSES[1:])):  # val has no cats
        for tar in range(tars):
            numbers = range(tar * 10, tar * 10 + 10)
            samples = [sample(f"{number:06d}", jpeg(80, 60), cls=classes[number % len(classes)]) for number in numbers]
            write_tar(folder / f"{split}-{tar:04d}.tar", chain(*samples))


def write_parquet(folder: Path) -> None:
    photos = [(jpeg(80, 60, seed=number), f"{number}.jpg") for number in range(COUNT)]
    labels = [number % 2 for number in range(COUNT)]
    columns = {"image": images(photos), "label": pa.array(labels)}
    write_table(folder / "data/train-00000-of-00001.parquet", columns, names=list(CLASSES))


def write_arrays(folder: Path) -> None:
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (COUNT, 60, 80, 3), np.uint8))
    np.save(folder / "labels.npy", np.arange(COUNT) % 2)
    write_databases(folder / "lsun")


def write_bucket(folder: Path) -> None:
    """Write the files that a server serves instead of a bucket; tests/remote builds from S3."""
    write_folders(folder / "bucket")


WRITERS: dict[str, Callable[[Path], None]] = {
    "csv": write_kaggle,
    "dataset-object": write_arrays,
    "folders": write_splits,
    "hugging-face": write_parquet,
    "multi-label": write_labels,
    "no-labels": write_unlabeled,
    "object-stores": write_bucket,
    "phone-photos": write_phone,
    "regression": write_ages,
    "webdataset": write_tars,
    "x-rays": write_x_rays,
}


def check_csv(folder: Path) -> None:
    """Check that the submission has a line per image, in order, and the classes of the JSON file."""
    lines = (folder / "submission.csv").read_text().splitlines()
    wanted = (folder / "sample_submission.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [line.split(",")[0] for line in wanted]
    assert {line.split(",")[1] for line in lines[1:]} <= {"boxer", "collie"}
    pairs, regions = open_store(folder / "pairs.store"), open_store(folder / "regions.store")
    row_of = {sample.source: row for row, sample in enumerate(pairs.samples)}
    for number in range(4):
        row = row_of[f"{number}/l.jpg"]
        assert (pairs.labels[row], pairs.column("label_right")[row]) == (number % 2, 1 - number % 2)
        expected = reference_row((folder / f"views/{number}/r.jpg").read_bytes(), 256, 256)
        np.testing.assert_array_equal(pairs.paired["right"][row], expected)
    region_of = {sample.source: str(regions.classes[sample.label]) for sample in regions.samples}
    assert region_of == {
        f"field/{('fox', 'owl')[n // 2]}_{('Oslo', 'Rome')[n % 2]}_{n}.jpg": ("north", "south")[n % 2] for n in range(4)
    }
    store = open_store(folder / "species.store")
    assert [str(one) for one in store.classes] == ["Aix", "Apis mellifera", "Lynx lynx"]  # by id
    assert {sample.source: sample.label for sample in store.samples} == {f"train/{n}.jpg": 2 - n % 2 for n in range(4)}


def check_labels(folder: Path) -> None:
    """Check the merged labels, and that the submission has the ids of the sample in its order."""
    store = open_store(folder / "tags.store")
    tags = {sample.source: store.column("tags")[sample.row].tolist() for sample in store.samples}
    assert (folder / "tags.txt").read_text().split() == ["people", "sea", "sky"]
    assert (len(tags), tags["train/0001.jpg"], tags["train/0002.jpg"]) == (COUNT, [0, 1, 1], [1, 1, 0])
    lines = [line.split(",") for line in (folder / "submission.csv").read_text().splitlines()]
    assert [name for name, _ in lines] == ["image", "b7", "a1", "c3", "a1", "lost"]
    assert (lines[2], lines[5][1]) == (lines[4], "sky")
    assert {label for _, labels in lines[1:] for label in labels.split()} <= {"people", "sea", "sky"}


def check_ages(folder: Path) -> None:
    store = open_store(folder / "both.store")
    ages = store.column("age")
    found = {sample.source: (sample.class_name, ages[sample.row]) for sample in store.samples}
    assert (found["faces/0001.jpg"], found["faces/0002.jpg"]) == (("Ada", 31.5), ("Bob", 4.25))


def check_unlabeled(folder: Path) -> None:
    """Check that the build skipped the truncated images, and that a copy was left out."""
    store = open_store(folder / "photos.store")
    assert [reject.reason.partition(":")[0] for reject in read_rejects(store.paths.rejects)] == ["truncated"] * 4
    assert (len(store), len({sample.digest for sample in store.samples})) == (COUNT - 4, COUNT - 4 - 2)
    assert (folder / "simclr.pt").is_file()


def check_tars(folder: Path) -> None:
    """Check that val, which has only dogs, has the labels of train."""
    train, val = (open_store(folder / f"{split}.store") for split in ("train", "val"))
    assert list(map(str, train.classes)) == list(map(str, val.classes)) == list(CLASSES)
    assert val.labels.tolist() == [CLASSES.index("dog")] * 20


CHECKS: dict[str, Callable[[Path], None]] = {
    "csv": check_csv,
    "multi-label": check_labels,
    "no-labels": check_unlabeled,
    "regression": check_ages,
    "webdataset": check_tars,
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def run_lines(text: str, folder: Path) -> str:
    """Run the command lines of a block, and return what they print."""
    output = ""
    environ = {"PATH": PATH, "CUDA_VISIBLE_DEVICES": ""}  # two ranks of torchrun cannot share a GPU
    for line in text.splitlines():
        words = shlex.split(line)
        is_prep = words[0] == "prep"
        output += printed(*words[1:], cwd=folder) if is_prep else run("bash", "-c", line, cwd=folder, **environ)
    return output


def assert_lists(text: str, folder: Path) -> None:
    for path in text.splitlines():
        assert (folder / path).is_file(), path


def assert_shown(text: str, output: str) -> None:
    """Check that each line of a block is in a line of the output, in this order."""
    lines = iter(output.splitlines())
    for line in text.splitlines():
        assert any(line in found for found in lines), f"{line!r} was not printed:\n{output}"


@pytest.mark.parametrize("name", PAGES)
def test_recipe_works_as_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS[name](tmp_path)
    monkeypatch.chdir(tmp_path)
    output, names = None, dict[str, object]({"__name__": "__main__"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "bucket")))
    with serving(server) as url, example_installed(tmp_path / "packages"):
        for block in blocks(PAGES[name]):
            if block.not_run:
                continue
            if block.language in SHELL:
                output = run_lines(block.text.replace("s3://bucket", url), tmp_path)
            elif block.language == "python":
                run_python(block, PAGES[name], names)
            elif output is None:
                assert_lists(block.text, tmp_path)
            else:
                assert_shown(block.text, output)
    if check := CHECKS.get(name):
        check(tmp_path)
    if "loss" in names:
        assert torch.isfinite(names["loss"])  # type: ignore[arg-type]


def run_python(block: Block, page: Path, names: dict[str, object]) -> None:
    """Write the file that a block shows, or run the block."""
    file = re.match(r"# (\w+\.py)\n", block.text)
    if file is not None:
        Path(file[1]).write_text(block.text)
    if file is None or "print(" in block.text:
        run_block(block, page, names)
