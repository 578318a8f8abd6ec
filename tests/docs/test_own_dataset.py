"""Every command in the first table of docs/how-to/own-dataset.md builds a store of data that its row describes."""

import inspect
import json
import re
import shlex
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from decodeonce.store import open_store
from tests.cli.test_plugins import write_databases
from tests.command import prep, prep_process
from tests.docs.pages import ROOT, blocks
from tests.forms.all_forms import PICS
from tests.forms.folder import write_folder
from tests.forms.form import Pic
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import make_tree
from tests.libraries import library
from tests.packages import NOT_DEV
from tests.plugins import example_installed
from tools.libraries import define_operators

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "how-to" / "own-dataset.md"
# What the row says about the data, and the words of its command after `prep`. tests/remote builds from URLs.
ROWS = re.findall(r"^\| ([^|]+) \| \[`prep ((?:(?!://)[^`])+)`\]", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
TARS = 148
WNIDS = sorted({pic.wnid for pic in PICS})


def write_module(folder: Path, name: str, before: str = "") -> None:
    """Write a module of the page, below the text `before`."""
    [text] = [block.text for block in blocks(PAGE) if block.text.startswith(f"# {name}.py\n")]
    (folder / f"{name}.py").write_text(before + text)


def path_of(pic: Pic) -> str:
    return f"photos/train/{pic.wnid}/{pic.stem}.JPEG"


def write_photos(folder: Path) -> int:
    write_folder(folder / "photos/train", PICS)
    return len(PICS)


def write_unlabelled(folder: Path) -> int:
    write_folder(folder / "photos", [pic._replace(wnid="all") for pic in PICS])
    return len(PICS)


def write_imagenet(folder: Path) -> int:
    make_tree(folder / "imagenet", classes=2, per_class=4)
    return 8


def write_table_of_paths(folder: Path) -> int:
    lines = ["path,label", *(f"{path_of(pic)},{pic.wnid}" for pic in PICS)]
    (folder / "train.csv").write_text("\n".join(lines))
    return write_photos(folder)


def write_paths(folder: Path) -> int:
    (folder / "train.txt").write_text("\n".join(map(path_of, PICS)))
    return write_photos(folder)


def write_boxes(folder: Path) -> int:
    """Write COCO's JSON with two objects in every image."""
    sizes = [Image.open(BytesIO(pic.data)).size for pic in PICS]
    listed = [
        {"id": number, "file_name": f"{pic.stem}.jpg", "width": width, "height": height}
        for number, (pic, (width, height)) in enumerate(zip(PICS, sizes, strict=True))
    ]
    objects = [
        {"image_id": number, "category_id": 3, "bbox": [left, 2, 9, 8]}
        for number in range(len(PICS))
        for left in (1, 12)
    ]
    found = {"images": listed, "annotations": objects, "categories": [{"id": 3, "name": "dog"}]}
    (folder / "instances.json").write_text(json.dumps(found))
    return 2 * write_paths(folder)


def write_tars(folder: Path) -> int:
    for number in range(TARS):
        pic = PICS[number % len(PICS)]
        write_tar(folder / f"train-{number:04d}.tar", sample(str(number), pic.data, cls=WNIDS.index(pic.wnid)))
    return TARS


def write_parquet(folder: Path) -> int:
    columns = {
        "image": images([(pic.data, f"{pic.stem}.JPEG") for pic in PICS]),
        "label": pa.array([WNIDS.index(pic.wnid) for pic in PICS]),
    }
    write_table(folder / "data" / "train-00000-of-00001.parquet", columns, names=WNIDS)
    return len(PICS)


def write_hugging_face(folder: Path) -> int:
    datasets = pytest.importorskip("datasets", reason=NOT_DEV.format("datasets"))
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=WNIDS))
    columns = {"image": [{"bytes": pic.data, "path": None} for pic in PICS], "label": [pic.wnid for pic in PICS]}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(folder / "photos-hf")
    write_module(folder, "mydata")
    return len(PICS)


def write_torchvision(folder: Path) -> int:
    library("torchvision")
    write_module(folder, "mydata", f"{inspect.getsource(define_operators)}\n\ndefine_operators()\n")
    return write_photos(folder)


def write_arrays(folder: Path) -> int:
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (6, 24, 20, 3), np.uint8))
    np.save(folder / "labels.npy", np.array([0, 1, 1, 0, 1, 0]))
    write_module(folder, "arrays")
    return 6


def write_lmdb(folder: Path) -> int:
    return len(write_databases(folder / "lsun"))


def write_store(folder: Path) -> int:
    count = write_photos(folder)
    assert prep_process("build", "folder", "photos/train", "train.store", cwd=folder).returncode == 0
    return count


# The data of each row, in the order of the table, with a part of the row's text.
WRITERS: Sequence[tuple[str, Callable[[Path], int]]] = (
    ("one folder per class", write_photos),
    ("images without labels", write_unlabelled),
    ("ImageNet", write_imagenet),
    ("a table of paths", write_table_of_paths),
    ("a list of paths", write_paths),
    ("COCO JSON", write_boxes),
    ("WebDataset", write_tars),
    ("Parquet", write_parquet),
    ("a Hugging Face dataset", write_hugging_face),
    ("a torchvision dataset, or any other", write_torchvision),
    ("arrays of pixels", write_arrays),
    ("LMDB", write_lmdb),
    ("a store", write_store),
)


@pytest.mark.parametrize(("row", "writer"), list(zip(ROWS, WRITERS, strict=True)), ids=[name for name, _ in WRITERS])
def test_command_of_table_builds_such_data(
    row: tuple[str, str], writer: tuple[str, Callable[[Path], int]], tmp_path: Path
) -> None:
    (described, command), (name, write) = row, writer
    assert name in described
    count = write(tmp_path)
    words = shlex.split(command.replace("/data/imagenet", "imagenet"))
    if "lmdb" in words:
        with example_installed(tmp_path / "packages"):
            done = prep(*words, cwd=tmp_path)
    else:
        done = prep_process(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = words[3] if words[0] == "build" else words[2]  # prep convert IN OUT
    store = open_store(tmp_path / out)
    assert len(store) == count
    assert (tmp_path / out / "rejects.tsv").read_text() == "source\treason\taction\n"
