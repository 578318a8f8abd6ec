"""Every public name has an entry in the API reference, and an example that prints what its docstring shows.

The examples of a name run in a new folder with what docs/reference/python.md lists.
"""

import doctest
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import decodeonce
from decodeonce.build import Recipe, WorkSettings, build
from decodeonce.prep.sources.imagenet import AnySplit
from decodeonce.sources import open_imagenet
from tests.docs.pages import ROOT
from tests.docs.test_blocks import CLASSES
from tests.forms.boxed import xml
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg
from tests.libraries import library

pytestmark = pytest.mark.long

PAGES = sorted((ROOT / "docs" / "reference").glob("python*.md"))
# Only authors of containers use these names; docs/reference/format.md is their documentation.
INTERNAL = {"Reject", "StorePaths"}
MODULES = ("decodeonce", "decodeonce.augment", "decodeonce.build", "decodeonce.sources", "decodeonce.store")
PUBLIC = {name: module for module in MODULES for name in import_module(module).__all__ if name not in INTERNAL}
# Docstrings link to pages, and use public names only.
PRIVATE = re.compile(r"\b(docs|src|tests|tools)/|\bdecodeonce\.(cli|errors|host|launch|loader|prep)\b")
GIVEN = {"__name__": "__main__", "Path": Path, "np": np, "torch": torch}
WORDS = ("tench", "goldfish", "white shark", "tabby")  # the classes in val.csv
MAPS = "def darken(pixels, sample):\n    return pixels // 2\n"
DATASET = """\
import numpy as np


def digits():
    return [(np.full((8, 8, 3), digit, np.uint8), ("even", "odd")[digit % 2]) for digit in range(10)]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that examples use."""
    root = tmp_path_factory.mktemp("reference")
    (root / "annotations").mkdir()
    for subfolder, images in (("train", 16), ("val", 4)):
        for wnid in CLASSES:
            folder = root / "imagenet" / subfolder / wnid
            folder.mkdir(parents=True)
            for number in range(images):
                (folder / f"{wnid}_{number}.JPEG").write_bytes(jpeg(300, 280, seed=number))
    val = sorted((root / "imagenet/val").glob("*/*.JPEG"))
    for image in val:
        (root / "annotations" / f"{image.stem}.xml").write_text(xml(("dog", (10, 20, 90, 70))))
    paths = [str(image.relative_to(root / "imagenet/val")) for image in val]
    words = [WORDS[CLASSES.index(image.parent.name)] for image in val]
    lines = ["path,label,score", *(f"{path},{word},0.5" for path, word in zip(paths, words, strict=True))]
    (root / "val.csv").write_text("\n".join(lines) + "\n")
    (root / "maps.py").write_text(MAPS)
    (root / "mydata.py").write_text(DATASET)
    seeds: dict[AnySplit, int | None] = {"train": 0, "val": None}
    for split, seed in seeds.items():
        source = open_imagenet(root / "imagenet", split=split)
        build(source, root / f"{split}.store", Recipe(shuffle_seed=seed), WorkSettings(workers=1))
    samples = [sample(image.stem, image.read_bytes(), cls=CLASSES.index(image.parent.name)) for image in val]
    write_tar(root / "shards/shard-000000.tar", [file for files in samples for file in files])
    write_parquet(root / "val.parquet", val)
    return root


def write_parquet(path: Path, images: list[Path]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"bytes": image.read_bytes(), "path": image.name} for image in images]
    labels = [CLASSES.index(image.parent.name) for image in images]
    parquet.write_table(pa.table({"image": rows, "label": labels}), path)


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the examples of a name run. They may change the stores."""
    for path in made.iterdir():
        if path.suffix == ".store":
            shutil.copytree(path, tmp_path / path.name)
        else:
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "maps", raising=False)  # of an earlier folder, which may be gone
    return tmp_path


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.usefixtures("folder")
def test_examples_of_name_print_what_they_show(name: str) -> None:
    names = {each: getattr(import_module(module), each) for each, module in PUBLIC.items()}
    found = doctest.DocTestFinder().find(names[name], name, globs={**names, **GIVEN})
    shown = [each for each in found if each.examples]
    assert name in [each.name for each in shown], "has no example"
    text = "".join(each.docstring or "" for each in found)
    assert not PRIVATE.search(text)
    for package in ("torchvision", "kornia"):
        if re.search(rf"(import|from) {package}\b", text):
            library(package)
    run_examples(shown)


@pytest.mark.usefixtures("folder")
def test_example_of_the_package_prints_what_it_shows() -> None:
    run_examples([doctest.DocTestParser().get_doctest(decodeonce.__doc__ or "", dict(GIVEN), "decodeonce", None, 0)])


def run_examples(shown: Iterable[doctest.DocTest]) -> None:
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for each in shown:
        runner.run(each, out=output.append)
    assert runner.tries
    assert not runner.failures, "".join(output)


def entries() -> Iterator[str]:
    """Yield the full names of the entries of the reference."""
    for page in PAGES:
        module = ""
        for kind, name in re.findall(r"^\.\. (currentmodule|auto\w+):: ([\w.]+)", page.read_text(), re.MULTILINE):
            if kind == "currentmodule":
                module = name
            else:
                yield f"{module}.{name}"


def test_public_names_are_in_the_reference() -> None:
    documented = list(entries())
    assert len(documented) == len(set(documented))
    assert {name.rpartition(".")[2] for name in documented} == PUBLIC.keys()
    for module, _, name in (each.rpartition(".") for each in documented):
        assert hasattr(import_module(module), name)


def test_tables_list_the_entries_of_their_page_in_order() -> None:
    for page in PAGES:
        text = page.read_text()
        table = re.findall(r"^   (\w+)$", text, re.MULTILINE)
        assert table == re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)", text, re.MULTILINE), page.name
