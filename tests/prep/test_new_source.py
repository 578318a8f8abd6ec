"""The sources of docs/contribute/sources.md work as that page says: its blocks are written to files and registered."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodeonce.build import Recipe, repair_store
from decodeonce.errors import BuildError
from decodeonce.prep.listing import Listing, Scan
from decodeonce.prep.recipe import BoxRules
from decodeonce.prep.sources import SOURCES, Registered, find_opener
from decodeonce.sources import BoxedSource, Entry, FolderSource, PairedSource, Source
from decodeonce.store import ImageClass, open_store, verify_store
from decodeonce.store.manifest import read_manifest
from tests.docs.pages import ROOT, blocks
from tests.forms.all_forms import PICS
from tests.forms.boxed import whole
from tests.forms.folder import write_folder
from tests.images import reference_row, tree_bytes
from tests.prep.building import build_in_process
from tests.store.signing import damage_rows

RECIPE = Recipe(height=32, width=32, shuffle_seed=0)
CLASSES = ["airplane", "bird", "cat"]


@pytest.fixture(scope="module", autouse=True)
def _new_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Register the sources of the page, as modules of a package `new_sources`."""
    path = tmp_path_factory.mktemp("path")
    (path / "new_sources").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(path)
        for block in blocks(ROOT / "docs" / "contribute" / "sources.md"):
            if kind := re.search(r'^    kind = "(\w+)"', block.text, re.MULTILINE):
                (path / "new_sources" / f"{kind[1]}.py").write_text(block.text)
            elif "Registered(" in block.text:
                lines = eval(f"{{{block.text}}}", {"_HERE": "new_sources", "Registered": Registered})
                for name, registered in lines.items():
                    patched.setitem(SOURCES, name, registered)
        yield


def check_repair(store: Path, src: Path) -> None:
    """Damage some rows and repair them from SRC."""
    before = tree_bytes(store)
    damage_rows(store, 0, 4, len(open_store(store)) - 1)
    assert not verify_store(store).ok
    repair = repair_store(store, src)
    assert (repair.ok, repair.repaired_rows) == (True, 3)
    assert tree_bytes(store) == before


def test_source_of_files(tmp_path: Path) -> None:
    (tmp_path / "src/south").mkdir(parents=True)
    data = {f"{pic.stem}.jpg": pic.data for pic in PICS}
    for name, encoded in data.items():
        (tmp_path / "src/south" / name).write_bytes(encoded)
    out = build_in_process(find_opener("zoo")(tmp_path / "src", camera="south"), tmp_path / "out", RECIPE)
    assert read_manifest(out / "store.json").source["options"] == {"camera": "south"}
    store = open_store(out)
    for sample in store.samples:
        np.testing.assert_array_equal(store.images[sample.row], reference_row(data[sample.source], 32, 32))
        assert store.classes[store.labels[sample.row]].name == sample.source.partition("_")[0]
    assert len(store.samples) == len(PICS)
    check_repair(out, tmp_path / "src")


def test_source_of_records_in_larger_files(tmp_path: Path) -> None:
    src, records = tmp_path / "src", np.random.default_rng(0).integers(0, 256, (2, 9, 3073), np.uint8)
    records[:, :, 0] = np.arange(18).reshape(2, 9) % 4  # label 3 is not a class
    src.mkdir()
    (src / "batches.meta.txt").write_text("\n".join([*CLASSES, "\n"]))
    records[0].tofile(src / "data_batch_1.bin")
    records[1].tofile(src / "data_batch_2.bin")
    out = build_in_process(find_opener("cifar10")(src), tmp_path / "out", RECIPE)
    store = open_store(out)
    assert [cls.name for cls in store.classes] == CLASSES
    for sample in store.samples:
        batch, place = map(int, re.findall(r"\d+", sample.source))
        label, *pixels = records[batch - 1, place]
        np.testing.assert_array_equal(store.images[sample.row], np.reshape(pixels, (3, 32, 32)).transpose(1, 2, 0))
        assert store.labels[sample.row] == label
    assert len(store.samples) == 14
    assert (out / "rejects.tsv").read_text().count("label 3, expected 0 to 2") == 4
    check_repair(out, src)
    with (src / "data_batch_2.bin").open("ab") as file:
        file.write(b"cut")
    with pytest.raises(BuildError, match=r"data_batch_2\.bin: 27660 bytes, expected records of 3073 bytes"):
        build_in_process(find_opener("cifar10")(src), tmp_path / "other", RECIPE)


def boxed(source: Source, root: Path, **rules: Any) -> BoxedSource:
    """Return the source with a box for each of PICS, whose classes are `zebra` and `ant`."""
    (root / "boxes").mkdir(exist_ok=True)
    for number, pic in enumerate(PICS):
        (root / "boxes" / f"{pic.stem}.xml").write_text(whole(("zebra", "ant")[number % 2]))
    return BoxedSource(source, root / "boxes", BoxRules(**rules))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "src", PICS)


@pytest.mark.parametrize("wrapped", ["plain", "boxed", "paired"])
def test_source_that_reads_bytes_is_refused(tree: Path, tmp_path: Path, wrapped: str) -> None:
    class BytesSource(FolderSource):
        def read(self, entry: Entry) -> list[bytes]:
            [data] = super().read(entry)
            return data  # type: ignore[return-value]

    source: Source = BytesSource(tree)
    if wrapped == "boxed":
        source = boxed(source, tmp_path)
    if wrapped == "paired":
        source = PairedSource(source, {"target:rgb": tree})
    entry = next(iter(source.scan().entries))
    with pytest.raises(BuildError, match=r"read\(\) of BytesSource returned bytes, expected a list of bytes; see"):
        source.read_checked(entry)


def test_label_without_a_class_is_refused(tree: Path) -> None:
    class ShortSource(FolderSource):
        def scan(self) -> Scan:
            return replace(super().scan(), classes=[ImageClass("only")])

    with pytest.raises(BuildError, match=r"_0\.JPEG: its label is 1, but `classes` of the scan has 1; see"):
        ShortSource(tree).listing()


def test_classes_that_boxes_would_renumber_are_refused(tree: Path, tmp_path: Path) -> None:
    class LazySource(FolderSource):
        def scan(self) -> Scan:
            classes, found = list[ImageClass](), super().scan()

            def entries() -> Iterator[Entry]:
                for entry in found.entries:
                    classes[:] = found.classes[: entry.label + 1]
                    yield entry

            return replace(found, entries=entries(), classes=classes)

    assert LazySource(tree).listing().classes == FolderSource(tree).listing().classes
    for rules in ({}, {"keep": 2}):
        with pytest.raises(BuildError, match="classes of LazySource were added while its entries were listed"):
            boxed(LazySource(tree), tmp_path, **rules).listing()


def test_wrappers_of_kept_boxes_keep_what_they_finish(tree: Path, tmp_path: Path) -> None:
    def facts(found: Listing) -> tuple[Sequence[str] | None, Any]:
        return found.box_classes, found.numbers["labels"].tolist()

    inside = PairedSource(boxed(FolderSource(tree), tmp_path, keep=2), {"target:rgb": tree}).listing()
    outside = boxed(PairedSource(FolderSource(tree), {"target:rgb": tree}), tmp_path, keep=2).listing()
    assert facts(inside) == facts(outside)
    assert inside.box_classes == ("ant", "zebra")
