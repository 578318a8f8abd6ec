"""Boxes from COCO's JSON: the same objects as from XML, what is left out, and files that are damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources.boxed import BoxedSource
from tests.command import prep
from tests.forms.boxed import xml
from tests.prep.test_boxes import DOG, FISH, SHARK, AnnotatedTree

NAMES = [f"{FISH}_1", f"{FISH}_2", f"{SHARK}_3"]
CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 1, "name": "great white shark"}, {"id": 90, "name": "toothbrush"}]


@pytest.fixture
def annotated(tmp_path: Path) -> AnnotatedTree:
    return AnnotatedTree(tmp_path, *NAMES)


def image(number: int, **changed: Any) -> dict[str, Any]:
    name = f"train/{NAMES[number]}.jpg" if number < len(NAMES) else f"other{number}.jpg"
    return {"id": number, "file_name": name, "width": 100, "height": 80, **changed}


def box(number: int, category: int, *bbox: float, **more: Any) -> dict[str, Any]:
    return {"image_id": number, "category_id": category, "bbox": list(bbox), "segmentation": [[1, 2, 3, 4]], **more}


def coco(*annotations: dict[str, Any], images: Any = None, **changed: Any) -> dict[str, Any]:
    images = [image(number) for number in range(3)] if images is None else images
    return {"info": {}, "images": images, "annotations": list(annotations), "categories": CATEGORIES, **changed}


def source_of(annotated: AnnotatedTree, found: Any, **rules: Any) -> BoxedSource:
    file = annotated.src.parent / "instances.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found))
    return annotated.source(file, **rules)


@pytest.mark.parametrize("rules", [{}, {"margin": 0.5}, {"keep": 2}, {"keep": 9}, {"least": 30, "without": "skip"}])
def test_json_gives_the_same_entries_as_xml(annotated: AnnotatedTree, rules: dict[str, Any]) -> None:
    objects = [
        box(0, 18, 10, 20, 50, 50),
        box(2, 1, 0, 0, 100, 80),
        box(0, 1, 12.5, 20.25, 49.75, 39.5, iscrowd=0),
        box(0, 90, 60, 70, -50, -50),  # inverted
        box(2, 18, 90, 70, 1000, 1000),  # leaves the image
        box(2, 18, 5, 5, 0, 9),  # no area
    ]
    name = {each["id"]: each["name"] for each in CATEGORIES}
    for number in (0, 2):
        edges = [
            (name[each["category_id"]], (x, y, x + width, y + height))
            for each in objects
            for x, y, width, height in [each["bbox"]]
            if each["image_id"] == number
        ]
        annotated.annotate(f"{NAMES[number]}.xml", xml(*edges))  # type: ignore[arg-type]
    source, expected = source_of(annotated, coco(*objects), **rules), annotated.source(**rules)
    entries = list(source.scan().entries)
    other = list(expected.scan().entries)
    if rules.get("keep"):  # numbers of names are compared as box_labels, which count in another order
        found = [(one.digested, one.numbers["edges"][:4]) for one in entries[::2]]
        assert found == [(one.digested, one.numbers["edges"][:4]) for one in other[::2]]
    else:  # new classes are in the order of the categories, not of their first objects
        names, theirs = ([cls.name for cls in some.listing().classes] for some in (source, expected))
        assert entries == [replace(one, label=names.index(theirs[one.label])) for one in other]
    own, also = ([line for line in some.listing().warnings if "new classes" not in line] for some in (source, expected))
    assert own == also


@pytest.mark.parametrize("keep", [0, 4])
def test_categories_have_the_same_labels_in_every_file(annotated: AnnotatedTree, keep: int) -> None:
    first = source_of(annotated, coco(box(1, 90, 1, 2, 30, 40)), keep=keep)
    entries = list(first.scan().entries)
    second = source_of(annotated, coco(box(2, 18, 1, 2, 30, 40), box(2, 1, 1, 2, 30, 40)), keep=keep)
    others = list(second.scan().entries)
    assert first.listing().classes == second.listing().classes
    assert first.listing().box_classes == second.listing().box_classes
    names = [cls.name for cls in first.listing().classes]
    if keep:
        assert names == [FISH, SHARK, DOG]
        assert first.listing().box_classes == ("dog", SHARK, "toothbrush")
    else:
        assert names == [FISH, SHARK, DOG, "dog", "toothbrush"]  # "great white shark" describes a class
        assert [names[entry.label] for entry in entries] == [FISH, "toothbrush", SHARK]
        assert [names[entry.label] for entry in others] == [FISH, FISH, "dog", SHARK]


def test_crowds_and_objects_of_unknown_images_are_skipped_and_counted(annotated: AnnotatedTree) -> None:
    crowd, ignored = box(0, 18, 0, 0, 9, 9, iscrowd=1), box(1, 1, 0, 0, 9, 9, ignore=1)
    found = coco(box(0, 1, 0, 0, 50, 40), crowd, ignored, crowd, box(7, 1, 0, 0, 9, 9), box(8, 1, 0, 0, 9, 9))
    source = source_of(annotated, found, without="skip")
    assert [entry.digested for entry in source.scan().entries] == [("0.0,0.0,0.5,0.5",)]
    assert source.listing().warnings == [
        f"objects with iscrowd or ignore, skipped: 3 (first train/{NAMES[0]}.jpg)",
        "skipped objects whose images are not listed: 2 (first image_id 7)",
        f"images without a usable box, skipped: 2 (first train/{FISH}/{NAMES[1]}.JPEG)",
        "object names that became new classes: 2 (first dog, toothbrush)",
    ]


def test_images_that_only_one_side_has(annotated: AnnotatedTree) -> None:
    source = source_of(annotated, coco(box(9, 1, 0, 0, 9, 9), images=[image(1), image(9)]))
    assert [entry.problem for entry in source.scan().entries] == ["", "", ""]
    assert f"annotations in {source.boxes} that match no image: 1 (first other9)" in source.listing().warnings
    with pytest.raises(BuildError, match=r"instances.json: other8 and all other annotations match no image in .*src"):
        list(source_of(annotated, coco(images=[image(8), image(9)])).scan().entries)


def test_unusable_object_is_a_problem_of_its_image(annotated: AnnotatedTree) -> None:
    for found, message in (
        (coco(box(1, 7, 0, 0, 9, 9)), "an object has category_id 7, which is not in its categories"),
        (coco({"image_id": 1, "category_id": True}), "category_id is True, expected a number or a text"),
        (coco(box(1, 1, 0, True, 9, 9)), "its bbox is [0, True, 9, 9], expected 4 numbers"),
        (coco(box(1, 1, 0, 0, 9)), r"its bbox is [0, 0, 9], expected 4 numbers"),
        (coco(box(1, 1, 0, 0, 9, float("nan"))), "its bbox is [0, 0, 9, nan], expected 4 numbers"),
        (coco(box(1, 1, 0, 0, 9, 10**400)), "its bbox is [0, 0, 9, 1000"),
        (coco({"image_id": 1, "category_id": None}), "category_id is None, expected a number or a text"),
        (
            coco({"image_id": 1, "class_\ud800": 18, "bbox": [1, 2, 3, 4]}),
            r"category_id is missing, found ['image_id', 'class_\ud800', 'bbox']; if another key means it, rename",
        ),
        (coco(images=[image(0), image(1, width=0), image(2)]), "size is 0x80, so its boxes are nowhere"),
        (coco(images=[image(0), image(1, height=None)]), "its width and height is [100, None], expected 2 numbers"),
    ):
        problems = [entry.problem for entry in source_of(annotated, found).scan().entries]
        assert problems[1].startswith(f"instances.json: {message}")
        assert [problems[0], problems[2]] == ["", ""]


def test_broken_file_is_an_error(annotated: AnnotatedTree) -> None:
    for found, message in (
        ("", "not JSON: Expecting value"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "not JSON: Expecting value"),
        ("[" * 200_000, "not JSON: (maximum recursion|Stack overflow)"),
        ("[]", 'it has no list "categories" of objects'),
        ({"images": [], "annotations": []}, 'it has no list "categories" of objects'),  # captions
        (coco(images=[1]), 'it has no list "images" of objects'),
        (coco(annotations=None), 'it has no list "annotations" of objects'),
        (coco({"image_id": [1]}), r"image_id is \[1\], expected a number or a text"),
        (coco({"image_id": True}), "image_id is True, expected a number or a text"),
        (coco(images=[image(1, id=1.0)]), "id is 1.0, expected a number or a text"),
        (
            coco(categories=[*CATEGORIES, {"id": 18, "name": "cat"}]),
            '"categories" has the id 18 twice, expected another',
        ),
        (coco(images=[image(1), image(2, id=1)]), '"images" has the id 1 twice, expected another id for each of them'),
        (coco(categories=[{"id": 1, "name": None}]), "name is None, expected a name"),
        (coco(categories=[{"id": 1, "title": "a"}]), r"name is missing, found \['id', 'title'\]; if another key"),
        (coco(images=[{"id": 1, "path": "a"}]), r"file_name is missing, found \['id', 'path'\]; if another key means"),
        (
            {"images": [], "annotations": [], "classes": []},
            r"of objects; its keys are \['images', 'annotations', 'classe",
        ),
        (coco(categories=[{"id": 1, "name": "\ud800"}]), "surrogates not allowed"),
        (coco(images=[image(1), image(1, id=5)]), f"two images are called '{FISH}_2' without folder and suffix"),
        (coco(images=[image(1, file_name=5)]), "file_name is 5, expected a name"),
    ):
        with pytest.raises(BuildError, match=rf"instances.json: .*{message}.*; expected unpacked annotations after"):
            list(source_of(annotated, found).scan().entries)


def test_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "src/thing").mkdir(parents=True)
    for path, flags, message in (
        ("none.json", [], "none.json: No such file or directory; expected unpacked annotations after --boxes: a"),
        ("/dev/null", [], "/dev/null: a device; expected unpacked annotations"),
        (__file__, ["--box-origin", "1"], "boxes in JSON always begin at 0; remove --box-origin, which is for XML"),
    ):
        done = prep("build", "folder", tmp_path / "src", tmp_path / "out", "--boxes", path, *flags)
        assert done.returncode
        assert message in done.stderr
