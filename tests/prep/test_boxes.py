"""Boxes from annotations: finding the file of an image, the boxes that count, and the entries that result."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.listing import Box, Entry
from decodeonce.prep.pixels.decode import pixel_box
from decodeonce.prep.recipe import BoxRules
from decodeonce.prep.sources import files, open_source
from decodeonce.prep.sources.boxed import NOT_ANNOTATED, Annotation, Annotations, BoxedSource, parse, usable_box
from decodeonce.sources import FolderSource, Links, open_imagenet, open_webdataset
from decodeonce.store import ImageClass
from tests.forms.boxed import xml
from tests.forms.webdataset import sample, write_tar

FISH, SHARK, DOG = "n01440764", "n01484850", "n02085620"
DESCRIPTIONS = {FISH: "tench, Tinca tinca", SHARK: "great white shark, white shark, crane", DOG: "Chihuahua, crane"}
INSIDE = (FISH, (10, 20, 60, 70))


class AnnotatedTree:
    """A tree of images in three classes, which are not decoded, and a folder of annotations."""

    def __init__(self, root: Path, *names: str) -> None:
        self.src, self.boxes = root / "src", root / "boxes"
        for wnid in (FISH, SHARK, DOG):
            (self.src / "train" / wnid).mkdir(parents=True)
        for name in names:
            (self.src / "train" / name.partition("_")[0] / f"{name}.JPEG").write_bytes(b"an image")
        lines = [f"{wnid} {words}\n" for wnid, words in DESCRIPTIONS.items()]
        (self.src / "LOC_synset_mapping.txt").write_text("".join(lines))

    def annotate(self, path: str, text: str | bytes) -> None:
        (self.boxes / path).parent.mkdir(parents=True, exist_ok=True)
        (self.boxes / path).write_bytes(text if isinstance(text, bytes) else text.encode())

    def source(self, boxes: Path | None = None, **rules: Any) -> BoxedSource:
        return BoxedSource(open_imagenet(self.src), boxes or self.boxes, BoxRules(**rules))

    def plain_entries(self) -> list[Entry]:
        return list(open_imagenet(self.src).scan().entries)


def annotations_of(top: Path) -> Annotations:
    return Annotations(top, Links(top), None)


def boxed(
    entry: Entry, *boxes: Box, names: Sequence[str] = (), keep: int = 0, size: tuple[float, float] = (100, 80)
) -> Entry:
    """Return the entry as a BoxedSource yields it with these boxes and names, from an annotation of this size."""
    edges: list[float] = [*chain(*boxes), *[math.nan] * 4 * ((keep or 1) - len(boxes))]
    numbers: list[float] = [*map(names.index, names), *[-1] * (keep - len(names))]
    digested = (*(",".join(map(str, box)) for box in boxes), *map(repr, names))
    own = {"edges": edges, "labels": numbers} if keep else {"box": edges}
    annotated = [*size] if boxes else [0.0, 0.0]
    return replace(entry, numbers={**own, "annotated": annotated}, digested=digested)


def listed(annotated: AnnotatedTree, **rules: Any) -> tuple[list[Entry], list[str]]:
    source = annotated.source(**rules)
    return list(source.scan().entries), source.listing().warnings


@pytest.fixture
def annotated(tmp_path: Path) -> AnnotatedTree:
    return AnnotatedTree(tmp_path, f"{FISH}_1", f"{FISH}_2", f"{SHARK}_3")


# ---- finding annotations


@pytest.mark.parametrize("path", ["{0}.xml", "n01440764/{0}.xml", "train/n01440764/{0}.xml", "a/b/c/d/{0}.xml"])
def test_annotation_is_found_at_any_depth_by_its_file_name(annotated: AnnotatedTree, path: str) -> None:
    annotated.annotate(path.format(f"{FISH}_2"), xml(INSIDE, filename=f"{FISH}_1"))
    entries, _ = listed(annotated)
    first, second, third = annotated.plain_entries()
    assert entries == [boxed(first), boxed(second, (0.1, 0.25, 0.6, 0.875)), boxed(third)]


def test_hidden_and_other_files_are_not_annotations(annotated: AnnotatedTree) -> None:
    annotated.annotate(f"{FISH}_1.xml", xml(INSIDE))
    for other in (f"._{FISH}_1.xml", f".old/{FISH}_1.xml", f"{FISH}_1.txt"):
        annotated.annotate(other, b"\0")
    assert annotations_of(annotated.boxes).files_except(set()) == [f"{FISH}_1.xml"]


def test_folder_without_usable_annotations_is_an_error(annotated: AnnotatedTree) -> None:
    def fails(message: str) -> None:
        with pytest.raises(BuildError, match=rf"boxes: {message}"):
            listed(annotated)

    fails("No such file or directory; expected unpacked annotations after --boxes: a folder of")
    annotated.boxes.write_bytes(b"a tar")
    fails("not JSON: Expecting value: .*; expected unpacked annotations after --boxes: a folder of")
    annotated.boxes.unlink()
    annotated.boxes.mkdir()
    fails(r"contains no \*.xml")
    annotated.annotate("ILSVRC2012_val_00000001.xml", xml(INSIDE))
    with pytest.raises(BuildError, match=r"val_00000001.xml and all other annotations match no image in .*src"):
        listed(annotated)
    for folder in "ba":
        annotated.annotate(f"{folder}/{FISH}_1.xml", xml(INSIDE))
    with pytest.raises(BuildError, match=rf"boxes/a/{FISH}_1.xml and .*boxes/b/{FISH}_1.xml"):
        listed(annotated)


# ---- usable boxes


def box_of(*edges: float, size: tuple[float, float] = (100, 80), **rules: Any) -> Any:
    ((_, drawn),) = parse(xml((FISH, (edges[0], edges[1], edges[2], edges[3])), size=size).encode()).objects
    return usable_box(drawn, Annotation(*size), BoxRules(**rules))


WITHOUT_AREA = [(10, 20, 10, 70), (10, 20, 60, 20), (100, 0, 120, 80), (-9, 0, 0, 80), (0, -3, 9, -1)]


def test_box_is_relative_to_annotated_size() -> None:
    for edges, box in (
        ((10, 20, 60, 70), (0.1, 0.25, 0.6, 0.875)),
        ((60, 70, 10, 20), (0.1, 0.25, 0.6, 0.875)),  # inverted
        ((60, 20, 10, 70), (0.1, 0.25, 0.6, 0.875)),
        ((-5, -9, 120, 81), (0, 0, 1, 1)),  # outside
        ((0, 0, 100, 80), (0, 0, 1, 1)),
        ((12.5, 20.25, 62.5, 60), (0.125, 0.253125, 0.625, 0.75)),
        *((edges, "boxes with no area inside their image, skipped") for edges in WITHOUT_AREA),
    ):
        assert box_of(*edges) == box


def test_small_box_is_skipped_by_size_after_clipping_and_before_margin() -> None:
    small = "boxes with a side under 20 pixels, skipped"
    assert box_of(10, 10, 30, 30, least=20) == (0.1, 0.125, 0.3, 0.375)
    assert box_of(10, 10, 29, 60, least=20) == small
    assert box_of(10, 10, 60, 29, least=20) == small
    assert box_of(-10, 10, 15, 60, least=20) == small
    assert box_of(10, 10, 25, 60, least=20, margin=1.0) == small
    assert box_of(10, 10, 10.5, 60) == "boxes with a side under 1 pixels, skipped"


def test_margin_is_relative_to_box_and_clipped_to_image() -> None:
    assert box_of(20, 20, 40, 60, margin=0.5) == (0.1, 0, 0.5, 1)
    assert box_of(0, 10, 80, 20, margin=0.25) == (0, 0.09375, 1, 0.28125)


sides = st.integers(1, 20_000)
anywhere = st.floats(-1e5, 1e5) | st.integers(-30_000, 30_000)


@given(sides, sides, sides, sides, st.tuples(anywhere, anywhere, anywhere, anywhere), st.floats(0, 3))
def test_crop_is_inside_image_and_not_empty(
    width: int, height: int, annotated_width: int, annotated_height: int, edges: tuple[float, ...], margin: float
) -> None:
    box = box_of(*edges, size=(annotated_width, annotated_height), margin=margin)
    if not isinstance(box, str):
        assert all(0 <= side <= 1 for side in box)
        left, top, right, bottom = pixel_box(box, width, height)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


@given(st.data(), st.integers(1, 65_500), st.integers(1, 65_500))
def test_integer_box_is_cropped_exactly(data: st.DataObject, width: int, height: int) -> None:
    left, right = data.draw(st.integers(0, width - 1)), data.draw(st.integers(1, width))
    top, bottom = data.draw(st.integers(0, height - 1)), data.draw(st.integers(1, height))
    (left, right), (top, bottom) = sorted((left, right)), sorted((top, bottom))
    if left < right and top < bottom:
        edges = (left, top, right, bottom)
        assert pixel_box(box_of(*edges, size=(width, height)), width, height) == edges


def test_annotation_may_have_namespaces(annotated: AnnotatedTree) -> None:
    for name in (f"{FISH}_1", f"{FISH}_2", f"{SHARK}_3"):
        annotated.annotate(f"{name}.xml", xml(INSIDE).replace("<annotation>", "<annotation xmlns='urn:x'><x:note/>", 1))
    assert [entry.problem for entry in listed(annotated)[0]] == [""] * 3


def test_unusable_annotation_is_a_problem(annotated: AnnotatedTree) -> None:
    for name in (f"{FISH}_1", f"{SHARK}_3"):
        annotated.annotate(f"{name}.xml", xml(INSIDE))
    for text, message in (
        ("", "not well-formed: no element found"),
        ("<annotation><size></annotation>", "not well-formed: mismatched tag: line 1, column 20"),
        ("<html/>", "<html>, expected <annotation>"),
        (xml(INSIDE, size=None), "its size has width '', expected a number"),
        (xml(INSIDE, size=(0, 80)), "size is 0x80, so its boxes are nowhere"),
        (xml(INSIDE, size=(100, -1)), "size is 100x-1, so its boxes are nowhere"),
        (xml(("", (1, 2, 3, 4))), "an object without a name"),
        (xml(INSIDE).replace("<name>", "<nom>").replace("</name>", "</nom>"), "an object without a name"),
        (xml(INSIDE).replace("60", "sixty"), "its bndbox has xmax 'sixty', expected a number"),
        (xml(INSIDE).replace("60", "nan"), "its bndbox has xmax 'nan', expected a number"),
        (xml(INSIDE).replace("bndbox", "polygon"), "its bndbox has xmin '', expected a number"),
        (f'<!DOCTYPE a SYSTEM "file:///etc/passwd">{xml(INSIDE)}', "it declares a document type"),
    ):
        annotated.annotate(f"{FISH}_2.xml", text)
        for without, keep in product(("keep", "skip"), (0, 2)):
            entries, warnings = listed(annotated, without=without, keep=keep)
            assert [bool(entry.problem) for entry in entries] == [False, True, False]
            assert entries[1].problem.startswith(f"{FISH}_2.xml: {message}")
            assert replace(entries[1], problem="") == annotated.plain_entries()[1]
            assert warnings == []


def test_annotations_with_other_encodings_or_parts_are_read() -> None:
    text = '<?xml version="1.0" encoding="{}"?>' + xml(("Möwe", (0, 0, 50, 40)))
    assert {parse(text.format(name).encode(name)).objects[0][0] for name in ("utf-8", "latin-1", "utf-16")} == {"Möwe"}
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object>"
    assert parse(xml(INSIDE).replace("</object>", part).encode()).objects == (INSIDE,)


def test_annotation_can_be_missing_not_unreadable(annotated: AnnotatedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    annotated.annotate(f"{FISH}_1.xml", xml(INSIDE))
    (annotated.boxes / f"{FISH}_2.xml").symlink_to("nowhere")
    assert listed(annotated)[0][1].problem == f"{FISH}_2.xml: No such file or directory"

    def failing(*args: object, **kwargs: object) -> None:
        raise OSError(5, "Input/output error")

    source = annotated.source()
    monkeypatch.setattr("builtins.open", failing)
    with pytest.raises(Stopped, match=rf"{FISH}_1.xml: Input/output error; run the same command again"):
        list(source.scan().entries)


# ---- entries


def test_each_object_is_an_entry_in_xml_order(annotated: AnnotatedTree) -> None:
    annotated.annotate(
        f"{FISH}_1.xml", xml((SHARK, (50, 0, 100, 80)), (FISH, (0, 0, 50, 40)), (SHARK, (0, 0, 100, 80)))
    )
    entries, warnings = listed(annotated)
    first = annotated.plain_entries()[0]
    assert entries[:3] == [
        boxed(replace(first, label=1), (0.5, 0.0, 1.0, 1.0)),
        boxed(replace(first, label=0), (0.0, 0.0, 0.5, 0.5)),
        boxed(replace(first, label=1), (0.0, 0.0, 1.0, 1.0)),
    ]
    assert entries[3:] == list(map(boxed, annotated.plain_entries()[1:]))
    assert warnings == [f"images without a usable box, kept whole: 2 (first train/{FISH}/{FISH}_2.JPEG)"]


def test_images_without_box_are_kept_whole_or_skipped(annotated: AnnotatedTree) -> None:
    annotated.annotate(f"{FISH}_1.xml", xml())
    annotated.annotate(f"{FISH}_2.xml", xml((FISH, (5, 5, 5, 5)), (FISH, (1, 1, 9, 90))))
    annotated.annotate(f"{SHARK}_3.xml", xml(INSIDE))
    for keep in (0, 3):
        entries, warnings = listed(annotated, without="keep", least=9, keep=keep)
        assert entries[:2] == [boxed(entry, keep=keep) for entry in annotated.plain_entries()[:2]]
        assert len(entries) == 3
        entries, skipped = listed(annotated, without="skip", least=9, keep=keep)
        assert [entry.text for entry in entries] == [f"train/{SHARK}/{SHARK}_3.JPEG"]
        assert warnings[1:] == [
            f"boxes with no area inside their image, skipped: 1 (first train/{FISH}/{FISH}_2.JPEG)",
            f"boxes with a side under 9 pixels, skipped: 1 (first train/{FISH}/{FISH}_2.JPEG)",
        ]
        boxless, two = "images without a usable box", f": 2 (first train/{FISH}/{FISH}_1.JPEG)"
        assert warnings[0] == f"{boxless}{'' if keep else ', kept whole'}{two}"
        assert skipped == [f"{boxless}, skipped{two}", *warnings[1:]]


def test_up_to_k_boxes_are_kept_with_label_of_image(annotated: AnnotatedTree) -> None:
    many = [("dog", (0.0, 0.0, 10.0 * n, 80.0)) for n in range(5)]
    annotated.annotate(f"{FISH}_1.xml", xml(*many))
    annotated.annotate(f"{FISH}_2.xml", xml(*many[:3]))
    source = annotated.source(keep=2)
    entries = list(source.scan().entries)
    kept = ((0.0, 0.0, 0.1, 1.0), (0.0, 0.0, 0.2, 1.0))
    *first, last = annotated.plain_entries()
    assert entries == [*(boxed(entry, *kept, names=("dog", "dog"), keep=2) for entry in first), boxed(last, keep=2)]
    assert [cls.name for cls in source.listing().classes] == [FISH, SHARK, DOG]
    more = f"images with more than 2 boxes; only the first 2 are kept: 1 (first train/{FISH}/{FISH}_1.JPEG)"
    assert more in source.listing().warnings


def test_object_label_follows_class_name_or_unique_word_or_is_new(annotated: AnnotatedTree) -> None:
    first = [SHARK, "TENCH", "white shark", "tinca Tinca", "dog"]
    third = ["crane", " Chihuahua ", "dog", "Dog", "tench, Tinca tinca"]
    for image, names in ((f"{FISH}_1", first), (f"{SHARK}_3", third)):
        annotated.annotate(f"{image}.xml", xml(*((name, (0, 0, 50, 40)) for name in names)))
    source = annotated.source(without="skip")
    for _ in range(2):  # a source may be listed more than once
        assert [entry.label for entry in source.scan().entries] == [1, 0, 1, 0, 3, 4, 2, 3, 5, 6]
        assert source.listing().classes[:3] == tuple(ImageClass(*item) for item in DESCRIPTIONS.items())
        assert [cls.name for cls in source.listing().classes[3:]] == ["dog", "crane", "Dog", "tench, Tinca tinca"]
        assert source.listing().warnings[-1] == "object names that became new classes: 4 (first dog, crane, Dog)"


def test_shared_and_unmatched_annotations_cause_warnings(annotated: AnnotatedTree) -> None:
    (annotated.src / "train" / DOG / f"{FISH}_1.png").write_bytes(b"an image")
    for name in (f"{FISH}_1", f"{FISH}_9", f"{FISH}_8"):
        annotated.annotate(f"{name}.xml", xml(INSIDE))
    entries, warnings = listed(annotated, without="skip")
    assert [entry.text for entry in entries] == [f"train/{FISH}/{FISH}_1.JPEG", f"train/{DOG}/{FISH}_1.png"]
    assert warnings[1:] == [
        f"images that share an annotation with another image: 1 (first train/{DOG}/{FISH}_1.png)",
        f"annotations in {annotated.boxes} that match no image: 2 (first {FISH}_8.xml)",
    ]


def test_problems_of_inner_source_are_kept(annotated: AnnotatedTree) -> None:
    (annotated.src / "train" / FISH / f"{FISH}_1.JPEG").write_bytes(b"")
    annotated.annotate(f"{FISH}_1.xml", "no annotation at all")
    annotated.annotate(f"{FISH}_2.xml", xml(INSIDE))
    entries, warnings = listed(annotated)
    assert entries[0] == annotated.plain_entries()[0]
    assert entries[0].problem == "empty file"
    assert warnings == [f"images without a usable box, kept whole: 1 (first train/{SHARK}/{SHARK}_3.JPEG)"]


def test_other_facts_are_those_of_the_inner_source(annotated: AnnotatedTree, tmp_path: Path) -> None:
    samples = [sample(name, b"an image", cls=label) for name, label in (("a", 0), ("b", 7))]
    inner = open_webdataset(write_tar(tmp_path / "a.tgz", chain(*samples), "w:gz"))
    for name in "ab":
        annotated.annotate(f"{name}.xml", xml(INSIDE, INSIDE))
    source = BoxedSource(inner, annotated.boxes, BoxRules())
    assert source.kind == "webdataset+boxes"
    assert (source.root, source.top, source.unit_name) == (inner.root, inner.top, "gzip stream")
    assert source.keeps_order
    assert source.found == f"{inner.found}, boxes from {annotated.boxes}"
    entries, plain = list(source.scan().entries), list(inner.scan().entries)
    assert [(entry.unit, entry.place) for entry in entries] == [(one.unit, one.place) for one in plain for _ in "12"]
    assert source.listing().warnings[:2] == inner.listing().warnings  # some depend on the number of images
    assert len(inner.listing().warnings) == 2
    assert source.read(entries[3]) == [b"an image"]
    assert source.arguments()["source"] == inner.arguments()


@pytest.mark.parametrize("keep", [0, 2])
def test_plan_restores_source_with_boxes(annotated: AnnotatedTree, keep: int) -> None:
    annotated.annotate(f"{FISH}_1.xml", xml(INSIDE, ("dog", (0, 0, 9, 9)), ("a", (0, 0, 9, 9))))
    source = BoxedSource(FolderSource(annotated.src / "train"), annotated.boxes, BoxRules(keep=keep))
    entries = list(source.scan().entries)
    again = open_source(source.kind, source.root, json.loads(json.dumps(source.arguments())))
    assert type(again) is BoxedSource
    assert type(again.source) is FolderSource
    assert again.read(entries[0]) == [b"an image"]
    assert again.columns() == source.columns()
    assert again.manifest_facts({}, "") == source.manifest_facts({}, "")
    assert source.listing().box_classes == (("dog", FISH) if keep else None)


def test_annotations_on_nfs_give_the_same_entries(annotated: AnnotatedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100, 140):
        (annotated.src / "train" / FISH / f"{FISH}_{number}.JPEG").write_bytes(b"an image")
        annotated.annotate(f"{FISH}_{number}.xml", xml((FISH, (0, 0, number - 99, 80))))
    expected, _ = listed(annotated)
    monkeypatch.setattr(files, "network_file_system", lambda path: "NFS")
    monkeypatch.setattr(files, "STATS_AT_ONCE", 8)
    assert listed(annotated)[0] == expected
    assert len(expected) == 43


def test_names_that_are_not_utf8_are_matched(tmp_path: Path) -> None:
    annotated = AnnotatedTree(tmp_path)
    name = b"\xff\n1"
    (tmp_path / "src/train" / FISH / os.fsdecode(name + b".JPEG")).write_bytes(b"an image")
    annotated.annotate(os.fsdecode(name + b".xml"), xml(INSIDE))
    assert [len(entry.digested) for entry in listed(annotated)[0]] == [1]
    assert annotations_of(annotated.boxes).read(b"other.JPEG") is NOT_ANNOTATED
    annotated.annotate(os.fsdecode(name + b".xml"), "<")
    assert listed(annotated)[0][0].problem.startswith("\udcff\n1.xml: not well-formed")
