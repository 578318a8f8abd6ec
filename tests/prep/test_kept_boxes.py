"""Boxes as rows, and boxes as columns of whole images: a red rectangle must be where its box says."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from decodeonce.errors import BuildError
from decodeonce.prep.building import WorkSettings, build, make_plan
from decodeonce.prep.recipe import BoxRules, Recipe
from decodeonce.prep.sources import BoxedSource, FolderSource
from decodeonce.store import Store, open_store, verify_store
from tests.images import encoded, reference_row

RED = (250, 10, 10)
BOXES = {"a": [(20, 10, 60, 40)], "b": [(0, 0, 30, 64), (70, 30, 96, 60), (40, 10, 64, 30)], "c": []}
NAMES = {"a": ["zebra"], "b": ["thing", "zebra", "apple"], "c": []}


@pytest.fixture
def with_boxes(tmp_path: Path) -> Path:
    """Write grey PNGs of 96x64 with red rectangles, and annotations for twice that size."""
    for folder in ("src/thing", "xml"):
        (tmp_path / folder).mkdir(parents=True)
    for name, boxes in BOXES.items():
        image = Image.new("RGB", (96, 64), (90, 90, 90))
        for box in boxes:
            image.paste(RED, box)
        (tmp_path / f"src/thing/{name}.png").write_bytes(encoded(image, "PNG"))
        objects = "".join(
            f"<object><name>{label}</name><bndbox>"
            + "".join(
                f"<{side}>{2 * at}</{side}>" for side, at in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
            )
            + "</bndbox></object>"
            for label, box in zip(NAMES[name], boxes, strict=True)
        )
        size = "<size><width>192</width><height>128</height></size>"
        if boxes:
            (tmp_path / f"xml/{name}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    return tmp_path


def built(tree: Path, rules: BoxRules, **options: object) -> Store:
    recipe = Recipe(**{"height": 48, "width": 48, "boxes": rules, **options})  # type: ignore[arg-type]
    build(
        BoxedSource(FolderSource(tree / "src"), tree / "xml", rules),
        tree / "out",
        recipe,
        WorkSettings(workers=1, max_bad="1"),
    )
    assert verify_store(tree / "out").ok
    return open_store(tree / "out")


def red(image: NDArray[np.uint8], near: int = 60) -> NDArray[np.bool_]:
    return np.logical_and.reduce(np.abs(image.astype(int) - RED) < near, axis=-1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("fit", "keep"), [("crop", 1), ("crop", 2), ("pad", 2), ("stretch", 5)])
def test_kept_boxes_are_in_pixels_of_the_row(with_boxes: Path, fit: str, keep: int) -> None:
    store = built(with_boxes, BoxRules(keep=keep), fit=fit)
    assert [column.name for column in store.manifest.columns] == ["boxes", "box_count", "box_labels"]
    boxes, counts = store.columns["boxes"], store.columns["box_count"]
    assert (boxes.shape, boxes.dtype.str, counts.dtype.str) == ((3, keep, 4), "<f4", "<i4")
    for row, sample in enumerate(store.samples):
        expected = np.zeros((48, 48), bool)
        for left, top, right, bottom in boxes[row, : counts[row]].round().astype(int):
            expected[top:bottom, left:right] = True
        if keep >= len(BOXES[Path(sample.source).stem]):
            assert (red(store.images[row]) != expected).mean() < 0.06  # resizing blends the edges
            assert expected.any() == bool(counts[row])
        assert not boxes[row, counts[row] :].any()
        assert sample.box == ""
    by_name = {Path(sample.source).stem: int(counts[row]) for row, sample in enumerate(store.samples)}
    outside = fit == "crop"  # of 96 columns 64 are kept, 16 to 80
    assert by_name == {"a": 1, "b": min(keep, 3), "c": 0}
    assert outside == (boxes[1, 0, 0] == 0 and boxes[1, 0, 2] < 12)


@pytest.mark.parametrize(
    ("keep", "first", "names", "labels"),
    [
        (1, (0, 0, 30, 64), ("thing", "zebra"), {"a": [1], "b": [0], "c": [-1]}),
        (4, (0, 0, 30, 64), ("apple", "thing", "zebra"), {"a": [2, *[-1] * 3], "b": [1, 2, 0, -1], "c": [-1] * 4}),
        # The crop removes 16 columns, and with them the first box and its label.
        (4, (0, 0, 12, 64), ("apple", "thing", "zebra"), {"a": [2, *[-1] * 3], "b": [2, 0, -1, -1], "c": [-1] * 4}),
    ],
)
def test_each_kept_box_has_its_class(
    with_boxes: Path, keep: int, first: tuple[int, ...], names: tuple[str, ...], labels: dict[str, list[int]]
) -> None:
    path = with_boxes / "xml/b.xml"
    path.write_text(path.read_text().replace("<xmax>60</xmax>", f"<xmax>{2 * first[2]}</xmax>", 1))
    store = built(with_boxes, BoxRules(keep=keep), shuffle_seed=3)
    column = store.columns["box_labels"]
    assert (column.shape, column.dtype.str, store.box_classes) == ((3, keep), "<i4", names)
    found = {Path(sample.source).stem: column[row].tolist() for row, sample in enumerate(store.samples)}
    assert found == labels
    assert ((column >= 0).sum(axis=1) == store.columns["box_count"]).all()


def test_store_without_usable_boxes_has_no_box_classes(with_boxes: Path) -> None:
    store = built(with_boxes, BoxRules(keep=2, least=1000))
    assert (store.box_classes, store.manifest.box_classes) == ((), ())
    assert (store.columns["box_labels"] == -1).all()


@pytest.mark.parametrize(("fit", "width"), [("stretch", 48), ("crop", 36)])
def test_kept_boxes_rotate_with_their_image(with_boxes: Path, fit: str, width: int) -> None:
    image, drawn = Image.open(with_boxes / "src/thing/a.png"), (with_boxes / "xml/a.xml").read_text()
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        (with_boxes / f"src/thing/turn{turn}.png").write_bytes(encoded(image, "PNG", exif=exif))
        (with_boxes / f"xml/turn{turn}.xml").write_text(drawn)
    store = built(with_boxes, BoxRules(keep=1), exif="apply", fit=fit, width=width)
    rotated = [row for row, sample in enumerate(store.samples) if "turn" in sample.source]
    assert len(rotated) == 8
    for row in rotated:
        left, top, right, bottom = store.columns["boxes"][row, 0].round().astype(int)
        expected = np.zeros((48, width), bool)
        expected[top:bottom, left:right] = True
        assert (red(store.images[row]) != expected).mean() < 0.08


def test_every_object_is_a_row_cropped_before_resize(with_boxes: Path) -> None:
    store = built(with_boxes, BoxRules(without="skip"), shuffle_seed=None)
    assert [sample.box for sample in store.samples] == ["20,10,60,40", "0,0,30,64", "70,30,96,60", "40,10,64,30"]
    assert all(red(image, 3).all() for image in store.images)
    assert {(sample.width, sample.height) for sample in store.samples} == {(96, 64)}


def test_margin_enlarges_crop_and_image_without_box_is_whole(with_boxes: Path) -> None:
    store = built(with_boxes, BoxRules(margin=0.25), shuffle_seed=None)
    assert [sample.box for sample in store.samples] == ["10,2,70,48", "0,0,38,64", "63,22,96,64", "34,5,70,35", ""]
    cut = Image.open(with_boxes / "src/thing/a.png").crop((10, 2, 70, 48))
    np.testing.assert_array_equal(store.images[0], reference_row(encoded(cut, "PNG"), 48, 48))
    whole = (with_boxes / "src/thing/c.png").read_bytes()
    np.testing.assert_array_equal(store.images[4], reference_row(whole, 48, 48))
    assert (store.box_classes, store.manifest.box_classes) == ((), None)
    assert b"box_classes" not in (with_boxes / "out/store.json").read_bytes()


def test_boxes_of_a_row_that_fills_a_hole_move_with_it(with_boxes: Path) -> None:
    (with_boxes / "src/thing/a0.png").write_bytes((with_boxes / "src/thing/a.png").read_bytes()[:200])
    store = built(with_boxes, BoxRules(keep=2), shuffle_seed=None)
    assert [sample.source for sample in store.samples] == ["thing/a.png", "thing/c.png", "thing/b.png"]
    stems = [Path(sample.source).stem for sample in store.samples]
    assert dict(zip(stems, store.columns["box_count"].tolist(), strict=True)) == {"a": 1, "b": 2, "c": 0}
    labels = dict(zip(stems, store.columns["box_labels"].tolist(), strict=True))
    assert labels == {"a": [1, -1], "b": [0, 1], "c": [-1, -1]}


def test_scaled_decoding_keeps_resolution_of_boxes(tmp_path: Path) -> None:
    for folder in ("src/thing", "xml"):
        (tmp_path / folder).mkdir(parents=True)
    image = Image.new("RGB", (1600, 1200), (90, 90, 90))
    image.paste(RED, (800, 600, 1000, 800))
    (tmp_path / "src/thing/a.jpg").write_bytes(encoded(image, subsampling=0))
    (tmp_path / "xml/a.xml").write_text(
        "<annotation><size><width>1600</width><height>1200</height></size><object><name>thing</name><bndbox>"
        "<xmin>800</xmin><ymin>600</ymin><xmax>1000</xmax><ymax>800</ymax></bndbox></object></annotation>"
    )
    store = built(tmp_path, BoxRules(), scaled_decode=True)
    assert red(store.images[0], 12)[1:-1, 1:-1].all()
    assert store.samples[0].box == "800,600,1000,800"


@pytest.mark.parametrize(
    ("change", "keep", "message"),
    [
        ("image", 0, r"1 changed \(first thing/b.png\)"),
        ("<xmin>140</xmin>", 0, "other classes, boxes"),
        ("<xmin>140</xmin>", 2, "other classes, boxes"),
        ("<name>zebra</name>", 2, "other classes, boxes"),
    ],
)
def test_error_says_what_changed_in_an_image_with_several_boxes(
    with_boxes: Path, change: str, keep: int, message: str
) -> None:
    rules = BoxRules(keep=keep)
    source = BoxedSource(FolderSource(with_boxes / "src"), with_boxes / "xml", rules)
    make_plan(source, with_boxes / "out", Recipe(boxes=rules))
    if change == "image":
        os.utime(with_boxes / "src/thing/b.png", ns=(1, 1))
    else:
        path = with_boxes / "xml/b.xml"
        path.write_text(path.read_text().replace(change, change.replace("140", "150").replace("zebra", "cat")))
    with pytest.raises(BuildError, match=message):
        make_plan(source, with_boxes / "out", Recipe(boxes=rules))
