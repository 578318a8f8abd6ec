"""Boxes as rows, and boxes as columns of whole images: a red rectangle must be where its box says."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from decodeonce.build import BoxRules, Recipe, make_plan
from decodeonce.errors import BuildError
from decodeonce.prep.pixels.unusual import is_upright
from decodeonce.prep.recipe import Exif
from decodeonce.sources import BoxedSource, FolderSource, PairedSource
from decodeonce.store import Store, open_store, verify_store
from decodeonce.store.manifest import DATA_OFFSET
from decodeonce.store.table import read_rejects
from tests.command import prep
from tests.forms.boxed import xml
from tests.images import encoded, exif, make_image, reference_row
from tests.prep.building import build_in_process
from tests.store.signing import flip

RED = (250, 10, 10)
BOXES = {"a": [(20, 10, 60, 40)], "b": [(0, 0, 30, 64), (70, 30, 96, 60), (40, 10, 64, 30)], "c": []}
NAMES = {"a": ["zebra"], "b": ["thing", "zebra", "apple"], "c": []}


@pytest.fixture
def with_boxes(tmp_path: Path) -> Path:
    """Write gray PNGs of 96x64 with red rectangles, and annotations for twice that size."""
    for folder in ("src/thing", "xml"):
        (tmp_path / folder).mkdir(parents=True)
    for name, boxes in BOXES.items():
        image = Image.new("RGB", (96, 64), (90, 90, 90))
        for box in boxes:
            image.paste(RED, box)
        (tmp_path / f"src/thing/{name}.png").write_bytes(encoded(image, "PNG"))
        doubled = [(left * 2, top * 2, right * 2, bottom * 2) for left, top, right, bottom in boxes]
        if boxes:
            objects = zip(NAMES[name], doubled, strict=True)
            (tmp_path / f"xml/{name}.xml").write_text(xml(*objects, size=(192, 128)))
    return tmp_path


def built(tree: Path, rules: BoxRules, **options: object) -> Store:
    recipe = Recipe(**{"height": 48, "width": 48, "boxes": rules, **options})  # type: ignore[arg-type]
    source = BoxedSource(FolderSource(tree / "src"), tree / "xml", rules)
    assert verify_store(build_in_process(source, tree / "out", recipe)).ok
    return open_store(tree / "out")


def draw_frame(tree: Path) -> None:
    """Write an image of 96x64 with a red frame of one pixel along the inside of (8, 6, 40, 38)."""
    image = Image.fromarray(np.random.default_rng(7).integers(60, 200, (64, 96, 3), np.uint8))
    ImageDraw.Draw(image).rectangle((8, 6, 39, 37), outline=RED)  # the last corner is inside
    (tree / "src/thing").mkdir(parents=True)
    image.save(tree / "src/thing/a.png")


def annotate_frame(tree: Path, database: str, edges: tuple[int, int, int, int]) -> None:
    (tree / "xml").mkdir(exist_ok=True)
    (tree / "xml/a.xml").write_text(xml(("thing", edges), size=(96, 64), database=database))


def check_frame(tree: Path, source: Callable[[BoxRules], BoxedSource]) -> None:
    """Check that the object is cut out at its frame, and that a kept box is the frame."""
    stores = [
        open_store(build_in_process(source(rules), tree / name, Recipe(height=height, width=width, boxes=rules)))
        for name, rules, height, width in (("a", BoxRules(), 32, 32), ("b", BoxRules(keep=1), 64, 96))
    ]
    assert stores[0].samples[0].box == "8,6,40,38"
    pixels = np.asarray(Image.open(tree / "src/thing/a.png"))
    np.testing.assert_array_equal(stores[0].images[0], pixels[6:38, 8:40])
    assert stores[1].columns["boxes"].tolist() == [[[8, 6, 40, 38]]]


@pytest.mark.parametrize(
    ("database", "origin", "edges"),
    [
        ("The VOC2007 Database", None, (9, 7, 40, 38)),
        ("ILSVRC_2012", None, (8, 6, 39, 37)),
        (" ImageNet database", None, (8, 6, 39, 37)),
        ("My VOC", None, (8, 6, 40, 38)),
        ("Unknown", "1", (9, 7, 40, 38)),
        ("The VOC2007 Database", "0", (8, 6, 39, 37)),
        ("ILSVRC_2012", "edge", (8, 6, 40, 38)),
    ],
)
def test_edges_follow_database(tmp_path: Path, database: str, origin: Any, edges: tuple[int, int, int, int]) -> None:
    draw_frame(tmp_path)
    annotate_frame(tmp_path, database, edges)
    images = FolderSource(tmp_path / "src")
    check_frame(tmp_path, lambda rules: BoxedSource(images, tmp_path / "xml", rules, origin=origin))


def test_boxes_of_json_are_distances_from_the_edges(tmp_path: Path) -> None:
    draw_frame(tmp_path)
    size, drawn = {"width": 96, "height": 64}, {"category_id": "x", "bbox": [8.0, 6, 32, 32]}
    images, categories = [{"id": 5, "file_name": "a.jpg", **size}], [{"id": "x", "name": "thing"}]
    found = {"images": images, "categories": categories, "annotations": [{"image_id": 5, **drawn}]}
    (tmp_path / "instances.json").write_text(json.dumps(found))
    folder = FolderSource(tmp_path / "src")
    check_frame(tmp_path, lambda rules: BoxedSource(folder, tmp_path / "instances.json", rules))
    flags = ("--size", 32, "--shuffle-seed", "none", "--boxes", tmp_path / "instances.json")
    assert "already finished" in prep("build", "folder", tmp_path / "src", tmp_path / "a", *flags).stdout


def test_store_is_found_again_by_its_boxes_and_not_by_box_origin(tmp_path: Path) -> None:
    draw_frame(tmp_path)
    same = ("build", "folder", tmp_path / "src", tmp_path / "out", "--boxes", tmp_path / "xml", "--size", "32")
    annotate_frame(tmp_path, "Unknown", (8, 6, 40, 38))
    assert prep(*same, "--box-origin", "edge").returncode == 0
    assert prep(*same).returncode == 0
    annotate_frame(tmp_path, "The VOC2007 Database", (8, 6, 40, 38))
    assert "differs from its source in names, sizes, classes, boxes, values or kind" in prep(*same).stderr
    assert prep(*same, "--box-origin", "edge").returncode == 0


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


@pytest.mark.parametrize(("fit", "width"), [("stretch", 48), ("crop", 36)])
def test_kept_boxes_rotate_with_their_image(with_boxes: Path, fit: str, width: int) -> None:
    image, drawn = Image.open(with_boxes / "src/thing/a.png"), (with_boxes / "xml/a.xml").read_text()
    for turn in range(1, 9):
        (with_boxes / f"src/thing/turn{turn}.png").write_bytes(encoded(image, "PNG", exif=exif(turn)))
        (with_boxes / f"xml/turn{turn}.xml").write_text(drawn)
    store = built(with_boxes, BoxRules(keep=1), exif="apply", fit=fit, width=width)
    rotated = [row for row, sample in enumerate(store.samples) if "turn" in sample.source]
    assert len(rotated) == 8
    for row in rotated:
        left, top, right, bottom = store.columns["boxes"][row, 0].round().astype(int)
        expected = np.zeros((48, width), bool)
        expected[top:bottom, left:right] = True
        assert (red(store.images[row]) != expected).mean() < 0.08


def write_photo(tree: Path, name: str, turn: int, annotation: str, **options: Any) -> Image.Image:
    """Write an image of 96x64 with an EXIF orientation, 0 for none, and an annotation; return the upright image."""
    image = make_image(96, 64, seed=turn)
    for folder in ("src/thing", "xml"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    tags: dict[str, Any] = {"exif": exif(turn)} if turn else {}
    image.save(tree / f"src/thing/{name}", **tags)
    (tree / f"xml/{Path(name).stem}.xml").write_text(annotation)
    with Image.open(tree / f"src/thing/{name}") as stored:
        return ImageOps.exif_transpose(stored)


@pytest.mark.parametrize(
    ("annotated", "turn", "upright"),
    [
        ((64, 96), 6, True),
        ((640, 960), 5, True),
        ((7, 10), 8, True),  # rounded from 6.67
        ((96, 64), 6, False),
        ((64, 96), 4, False),
        ((30, 90), 6, False),  # neither ratio
        ((80, 80), 6, False),
        ((0, 0), 6, False),
    ],
)
def test_ratio_of_sides_tells_upright_annotations(annotated: tuple[int, int], turn: int, upright: bool) -> None:
    assert is_upright(annotated, (96, 64), turn) is upright
    assert not is_upright(annotated, (80, 80), turn)


@pytest.mark.parametrize("scale", [1, 4])  # an annotation may be for a scaled image
@pytest.mark.parametrize("keep", [0, 2])
def test_boxes_of_upright_images_are_where_they_are_annotated(tmp_path: Path, keep: int, scale: int) -> None:
    left, top, right, bottom = box = (8, 16, 40, 48)
    drawn = ("thing", (scale * left, scale * top, scale * right, scale * bottom))
    annotation, upright = xml(drawn, size=(64 * scale, 96 * scale)), {}
    for turn, suffix in itertools.product(range(5, 9), ("png", "jpg")):
        name = f"{turn}-{suffix}.{suffix}"
        upright[f"thing/{name}"] = write_photo(tmp_path, name, turn, annotation)
    images = PairedSource(FolderSource(tmp_path / "src"), {"target:rgb": tmp_path / "src"})
    rules, (width, height) = BoxRules(keep=keep), (64, 96) if keep else (32, 32)
    source = BoxedSource(images, tmp_path / "xml", rules)
    recipe = Recipe(height=height, width=width, boxes=rules, exif="apply")
    store = open_store(build_in_process(source, tmp_path / "out", recipe))
    assert len(store.samples) == 8
    for row, sample in enumerate(store.samples):
        whole = upright[sample.source]
        expected = np.asarray(whole if keep else whole.crop(box))
        np.testing.assert_array_equal(store.images[row], expected)
        np.testing.assert_array_equal(store.paired["target"][row], expected)
        if keep:
            assert store.columns["boxes"][row].tolist() == [[*box], [0] * 4]
    if not keep:
        flip(tmp_path / "out/images-00000.npy", DATA_OFFSET + 100)
        flags = ("--from", tmp_path / "src", "--paired", f"target={tmp_path}/src")
        assert "repaired 1 row" in prep("repair", tmp_path / "out", *flags).stdout


def test_boxes_that_do_not_fit_their_image_are_rejected(tmp_path: Path) -> None:
    box = ("thing", (8, 16, 40, 48))
    upright, stored = xml(box, size=(64, 96)), xml(box, size=(96, 64))
    for name, turn, annotation in (
        ("0.jpg", 0, upright),
        ("1.png", 1, upright),
        ("3.jpg", 3, upright),
        ("6.jpg", 6, upright),
        ("7.png", 6, stored),
        ("8.tif", 6, stored),
        ("9.tif", 6, upright),
    ):
        write_photo(tmp_path, name, turn, annotation)
    rotations: tuple[Exif, ...] = ("ignore", "apply")
    for keep, rotation in itertools.product((0, 1), rotations):
        rules = BoxRules(keep=keep)
        source = BoxedSource(FolderSource(tmp_path / "src"), tmp_path / "xml", rules)
        out = build_in_process(source, tmp_path / f"{keep}{rotation}", Recipe(boxes=rules, exif=rotation))
        found = {one.source: one.reason for one in read_rejects(out / "rejects.tsv") if one.action == "rejected"}
        advice = "correct the size in the annotation, or rotate the image"
        swapped = f"its boxes are for 64x96 pixels, but the image has 96x64; {advice}"
        expected = dict.fromkeys(("thing/0.jpg", "thing/1.png", "thing/3.jpg"), swapped)
        turned = f"its boxes are for 96x64 pixels, but the image has 64x96; {advice}"
        expected["thing/8.tif"] = turned  # Pillow turns every TIFF
        if rotation == "ignore":
            expected["thing/6.jpg"] = "its boxes are for the upright image (64x96 pixels); pass --exif apply"
        assert found == expected


def test_store_without_usable_boxes_has_no_box_classes(with_boxes: Path) -> None:
    store = built(with_boxes, BoxRules(keep=2, least=1000))
    assert (store.box_classes, store.manifest.box_classes) == ((), ())
    assert (store.columns["box_labels"] == -1).all()


def test_margin_enlarges_crop_and_image_without_box_is_whole(with_boxes: Path) -> None:
    store = built(with_boxes, BoxRules(margin=0.25), shuffle_seed=None)
    assert [sample.box for sample in store.samples] == ["10,2,70,48", "0,0,38,64", "63,22,96,64", "34,5,70,35", ""]
    assert {(sample.width, sample.height) for sample in store.samples} == {(96, 64)}
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


def test_scaled_decoding_keeps_resolution_of_boxes(with_boxes: Path) -> None:
    image = Image.new("RGB", (1600, 1200), (90, 90, 90))
    image.paste(RED, (800, 600, 1000, 800))
    (with_boxes / "src/thing/0.jpg").write_bytes(encoded(image, subsampling=0))
    (with_boxes / "xml/0.xml").write_text(xml(("thing", (800, 600, 1000, 800)), size=(1600, 1200)))
    store = built(with_boxes, BoxRules(), scaled_decode=True, shuffle_seed=None)
    assert red(store.images[0], 12)[1:-1, 1:-1].all()
    assert store.samples[0].box == "800,600,1000,800"


def test_error_says_what_changed_with_several_boxes(with_boxes: Path) -> None:
    def plan(keep: int) -> None:
        rules = BoxRules(keep=keep)
        source = BoxedSource(FolderSource(with_boxes / "src"), with_boxes / "xml", rules)
        make_plan(source, with_boxes / f"out{keep}", Recipe(boxes=rules))

    path = with_boxes / "xml/b.xml"
    drawn = path.read_text()
    for keep, old, new in ((0, "<xmin>140", "<xmin>150"), (2, "<xmin>140", "<xmin>150"), (2, ">zebra<", ">cat<")):
        path.write_text(drawn)
        plan(keep)
        path.write_text(drawn.replace(old, new))
        with pytest.raises(BuildError, match="other classes, boxes"):
            plan(keep)
    path.write_text(drawn)
    os.utime(with_boxes / "src/thing/b.png", ns=(1, 1))
    with pytest.raises(BuildError, match=r"1 changed \(first thing/b.png\)"):
        plan(0)
