"""Boxes from annotations: which file is a picture's, what of it counts, and what becomes of the picture."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.entry import Entry
from decodeonce.prep.pixels.geometry import pixel_box
from decodeonce.prep.recipe import BoxRules
from decodeonce.prep.sources import FolderSource, Source, open_source, parallel_stat
from decodeonce.prep.sources.base import file_entry, read_file, stem_of
from decodeonce.prep.sources.boxed import BoxedSource
from decodeonce.prep.sources.formats.annotations import (
    MAX_BYTES,
    NOT_ANNOTATED,
    Annotation,
    Annotations,
    parse,
    usable_box,
)
from decodeonce.prep.sources.links import Links
from decodeonce.store import ImageClass

Drawn = tuple[str, tuple[float, float, float, float]]
FISH, SHARK, DOG = "n01440764", "n01484850", "n02085620"
DESCRIPTIONS = {FISH: "tench, Tinca tinca", SHARK: "great white shark, white shark, crane", DOG: "Chihuahua, crane"}
INSIDE = (FISH, (10, 20, 60, 70))


def xml(*objects: Drawn, size: tuple[Any, Any] | None = (100, 80), filename: str = "%s") -> str:
    drawn = "".join(
        f"<object><name>{name}</name><pose>Left</pose><bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax>"
        f"<ymax>{bottom}</ymax></bndbox></object>"
        for name, (left, top, right, bottom) in objects
    )
    sides = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>" if size else ""
    return f"<annotation>\n<folder>x</folder><filename>{filename}</filename>{sides}{drawn}</annotation>\n"


class Tree(Source):
    """Pictures in the folders of three classes that are described, and all that a wrapper must pass on."""

    kind = "tree"
    read_unit = "pair"
    doubted: list[int]

    @property
    def top(self) -> Path:
        return self.root / "train"

    def doubts(self, samples: int) -> list[str]:
        self.doubted = [samples]
        return ["a doubt"]

    def facts(self) -> dict[str, Any]:
        return {"a": "fact"}

    def classes(self) -> tuple[ImageClass, ...]:
        return tuple(ImageClass(*item) for item in DESCRIPTIONS.items())

    def entries(self) -> Iterator[Entry]:
        for place, path in enumerate(sorted(self.top.glob("*/*"))):
            name, label = os.fsencode(path.relative_to(self.root)), list(DESCRIPTIONS).index(path.parent.name)
            yield replace(file_entry(self.root, name, label), unit=place // 2, place=place)

    def read(self, entry: Entry) -> bytes:
        return read_file(self.root, entry)

    def row_maker(self, recipe: Any) -> Any:
        return recipe


class Trial:
    """A tree of pictures (never decoded here), and a folder of annotations."""

    def __init__(self, root: Path, *names: str) -> None:
        self.src, self.boxes = root / "src", root / "boxes"
        for wnid in (FISH, SHARK, DOG):
            (self.src / "train" / wnid).mkdir(parents=True)
        for name in names:
            (self.src / "train" / name.partition("_")[0] / f"{name}.JPEG").write_bytes(b"a picture")

    def draw(self, path: str, text: str | bytes) -> None:
        """Write the annotation `path`."""
        (self.boxes / path).parent.mkdir(parents=True, exist_ok=True)
        (self.boxes / path).write_bytes(text if isinstance(text, bytes) else text.encode())

    def source(self, **rules: Any) -> BoxedSource:
        return BoxedSource(Tree(self.src), self.boxes, BoxRules(**rules))

    def inner(self) -> list[Entry]:
        return list(Tree(self.src).entries())


def listed(trial: Trial, **rules: Any) -> tuple[list[Entry], list[str]]:
    source = trial.source(**rules)
    entries = list(source.entries())
    inner, *own = source.doubts(len(entries))
    assert inner == "a doubt"
    return entries, own


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, f"{FISH}_1", f"{FISH}_2", f"{SHARK}_3")


# ---- which file is a picture's


@pytest.mark.parametrize("path", ["{0}.xml", "n01440764/{0}.xml", "train/n01440764/{0}.xml", "a/b/c/d/{0}.xml"])
def test_an_annotation_lies_at_any_depth_and_is_known_by_its_own_name(trial: Trial, path: str) -> None:
    trial.draw(path.format(f"{FISH}_2"), xml(INSIDE, filename=f"{FISH}_1"))
    entries, _ = listed(trial)
    assert [entry.boxes for entry in entries] == [(), ((0.1, 0.25, 0.6, 0.875),), ()]


def test_a_picture_is_known_by_its_name_without_folder_and_suffix() -> None:
    assert stem_of(b"n01440764/n01440764_10040.JPEG") == b"n01440764_10040"
    assert stem_of(b"ILSVRC2012_val_00000001.JPEG") == b"ILSVRC2012_val_00000001"
    assert stem_of(b"train.tar/a/b.c.jpg") == b"b.c"


def test_two_annotations_of_one_name_are_refused(trial: Trial) -> None:
    trial.draw(f"b/{FISH}_1.xml", xml(INSIDE))
    trial.draw(f"a/{FISH}_1.xml", xml(INSIDE))
    with pytest.raises(BuildError, match=rf"boxes/a/{FISH}_1.xml and .*boxes/b/{FISH}_1.xml"):
        listed(trial)


def test_links_are_followed_but_not_in_circles(trial: Trial, tmp_path: Path) -> None:
    trial.draw(f"{FISH}_1.xml", xml(INSIDE))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "train").symlink_to(trial.boxes)
    followed = Annotations(tmp_path / "links", Links(tmp_path / "links", follow=True))
    assert followed.read(b"n01440764_1.JPEG").objects
    assert "--follow-links" in Annotations(tmp_path / "links").read(b"n01440764_1.JPEG").problem
    for name in ("round", "again"):
        (trial.boxes / name).symlink_to(trial.boxes)
    assert Annotations(trial.boxes).read(b"n01440764_1.JPEG").objects


def test_what_is_hidden_or_not_xml_is_none(trial: Trial) -> None:
    trial.draw(f"{FISH}_1.xml", xml(INSIDE))
    for other in (f"._{FISH}_1.xml", f".old/{FISH}_1.xml", f"{FISH}_1.txt"):
        trial.draw(other, b"\0")
    assert Annotations(trial.boxes).files_except(set()) == [f"{FISH}_1.xml"]


@pytest.mark.parametrize(
    ("make", "told"),
    [(None, "no such folder; --boxes takes the folder"), ("file", "not a folder"), ("folder", r"no \*.xml")],
)
def test_a_folder_without_annotations_is_refused(trial: Trial, make: str | None, told: str) -> None:
    if make == "file":
        trial.boxes.write_bytes(b"a tar")
    elif make == "folder":
        trial.boxes.mkdir()
    with pytest.raises(BuildError, match=rf"boxes: {told}"):
        listed(trial)


def test_annotations_of_other_pictures_are_refused(trial: Trial) -> None:
    trial.draw("ILSVRC2012_val_00000001.xml", xml(INSIDE))
    with pytest.raises(BuildError, match=r"val_00000001.xml and all others have the name of no picture in .*src"):
        listed(trial)


# ---- what of it counts


def box_of(*edges: float, size: tuple[float, float] = (100, 80), **rules: Any) -> Any:
    ((_, drawn),) = parse(xml((FISH, (edges[0], edges[1], edges[2], edges[3])), size=size).encode()).objects
    return usable_box(drawn, Annotation(*size), BoxRules(**rules))


@pytest.mark.parametrize(
    ("edges", "box"),
    [
        ((10, 20, 60, 70), (0.1, 0.25, 0.6, 0.875)),
        ((60, 70, 10, 20), (0.1, 0.25, 0.6, 0.875)),  # inverted
        ((60, 20, 10, 70), (0.1, 0.25, 0.6, 0.875)),
        ((-5, -9, 120, 81), (0, 0, 1, 1)),  # outside
        ((0, 0, 100, 80), (0, 0, 1, 1)),
        ((12.5, 20.25, 62.5, 60), (0.125, 0.253125, 0.625, 0.75)),
    ],
)
def test_boxes_are_shares_of_the_annotated_size(edges: tuple[float, ...], box: tuple[float, ...]) -> None:
    assert box_of(*edges) == box


@pytest.mark.parametrize(
    "edges", [(10, 20, 10, 70), (10, 20, 60, 20), (100, 0, 120, 80), (-9, 0, 0, 80), (0, -3, 9, -1)]
)
def test_boxes_without_an_area_in_the_picture_are_not_usable(edges: tuple[float, ...]) -> None:
    assert box_of(*edges) == "boxes with no area inside their picture, left out"


def test_small_boxes_are_left_out_by_their_size_after_clipping_and_before_the_margin() -> None:
    small = "boxes with a side under 20 pixels, left out"
    assert box_of(10, 10, 30, 30, least=20) == (0.1, 0.125, 0.3, 0.375)
    assert box_of(10, 10, 29, 60, least=20) == small
    assert box_of(10, 10, 60, 29, least=20) == small
    assert box_of(-10, 10, 15, 60, least=20) == small
    assert box_of(10, 10, 25, 60, least=20, margin=1.0) == small
    assert box_of(10, 10, 10.5, 60) == "boxes with a side under 1 pixels, left out"


def test_a_margin_is_a_share_of_the_boxs_side_and_ends_at_the_picture() -> None:
    assert box_of(20, 20, 40, 60, margin=0.5) == (0.1, 0, 0.5, 1)
    assert box_of(0, 10, 80, 20, margin=0.25) == (0, 0.09375, 1, 0.28125)


def test_annotated_and_true_size_may_differ() -> None:
    assert pixel_box(box_of(10, 20, 60, 70), 500, 400) == (50, 100, 300, 350)


sides = st.integers(1, 20_000)
anywhere = st.floats(-1e5, 1e5) | st.integers(-30_000, 30_000)


@given(sides, sides, sides, sides, st.tuples(anywhere, anywhere, anywhere, anywhere), st.floats(0, 3))
def test_whatever_was_drawn_a_crop_is_inside_the_picture_and_not_empty(
    width: int, height: int, drawn_width: int, drawn_height: int, edges: tuple[float, ...], margin: float
) -> None:
    box = box_of(*edges, size=(drawn_width, drawn_height), margin=margin)
    if not isinstance(box, str):
        assert all(0 <= side <= 1 for side in box)
        left, top, right, bottom = pixel_box(box, width, height)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


@given(st.data(), st.integers(1, 65_500), st.integers(1, 65_500))
def test_whole_boxes_on_the_true_size_are_cut_as_they_were_drawn(data: st.DataObject, width: int, height: int) -> None:
    left, right = data.draw(st.integers(0, width - 1)), data.draw(st.integers(1, width))
    top, bottom = data.draw(st.integers(0, height - 1)), data.draw(st.integers(1, height))
    (left, right), (top, bottom) = sorted((left, right)), sorted((top, bottom))
    if left < right and top < bottom:
        assert pixel_box(box_of(left, top, right, bottom, size=(width, height)), width, height) == (
            left,
            top,
            right,
            bottom,
        )


BOMB = '<!DOCTYPE a [<!ENTITY b "aaaaaaaaaa">' + "".join(
    f'<!ENTITY b{n} "{f"&b{n - 1};" * 10 if n else "&b;" * 10}">' for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not well-formed: no element found"),
        ("<annotation><size></annotation>", "not well-formed: mismatched tag: line 1, column 20"),
        (xml(INSIDE)[:200], "not well-formed: "),
        (xml(INSIDE) + "<annotation/>", "not well-formed: junk after document element"),
        ('<?xml version="1.0" encoding="none-such"?>' + xml(INSIDE), "not well-formed: unknown encoding"),
        ("<html/>", "<html>, expected <annotation>"),
        (xml(INSIDE, size=None), "its size has width '', expected a number"),
        (xml(INSIDE, size=("", 80)), "its size has width '', expected a number"),
        (xml(INSIDE, size=(0, 80)), "size is 0x80, so its boxes are nowhere"),
        (xml(INSIDE, size=(100, -1)), "size is 100x-1, so its boxes are nowhere"),
        (xml(INSIDE, size=(100, "inf")), "its size has height 'inf', expected a number"),
        (xml(("", (1, 2, 3, 4))), "an object without a name"),
        (xml(INSIDE).replace("<name>", "<nom>").replace("</name>", "</nom>"), "an object without a name"),
        (xml(INSIDE).replace("60", "sixty"), "its bndbox has xmax 'sixty', expected a number"),
        (xml(INSIDE).replace("60", "nan"), "its bndbox has xmax 'nan', expected a number"),
        (xml(INSIDE).replace("bndbox", "polygon"), "its bndbox has xmin '', expected a number"),
        (f"{BOMB}]><annotation>&b8;</annotation>", "it declares a document type"),
        (f'<!DOCTYPE a SYSTEM "file:///etc/passwd">{xml(INSIDE)}', "it declares a document type"),
        ("<annotation>&b;</annotation>", "not well-formed: undefined entity"),
        (xml(INSIDE) + "\n" * MAX_BYTES, f"more than {MAX_BYTES} bytes"),
    ],
)
@pytest.mark.parametrize("without", ["keep", "skip"])
@pytest.mark.parametrize("keep", [0, 2])
def test_a_useless_annotation_makes_a_problem_of_its_picture(
    trial: Trial, text: str, told: str, without: str, keep: int
) -> None:
    trial.draw(f"{FISH}_2.xml", text)
    for name in (f"{FISH}_1", f"{SHARK}_3"):
        trial.draw(f"{name}.xml", xml(INSIDE))
    entries, doubts = listed(trial, without=without, keep=keep)
    assert [bool(entry.problem) for entry in entries] == [False, True, False]
    assert entries[1].problem.startswith(f"{FISH}_2.xml: {told}")
    assert replace(entries[1], problem="") == trial.inner()[1]
    assert doubts == []


def test_elements_inside_one_another_without_end_are_refused() -> None:
    deep = MAX_BYTES // 7
    with pytest.raises(ValueError, match="<a>, expected <annotation>"):
        parse(b"<a>" * deep + b"</a>" * deep)


def test_annotations_in_other_encodings_and_with_parts_are_read() -> None:
    text = '<?xml version="1.0" encoding="{}"?>' + xml(("Möwe", (0, 0, 50, 40)))
    assert {parse(text.format(name).encode(name)).objects[0][0] for name in ("utf-8", "latin-1", "utf-16")} == {"Möwe"}
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object>"
    assert parse(xml(INSIDE).replace("</object>", part).encode()).objects == (INSIDE,)


def test_an_annotation_that_cannot_be_read_is_a_problem_a_failing_file_system_is_not(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.draw(f"{FISH}_1.xml", xml(INSIDE))
    (trial.boxes / f"{FISH}_2.xml").symlink_to("nowhere")
    assert listed(trial)[0][1].problem == f"{FISH}_2.xml: No such file or directory"

    def failing(*args: object, **kwargs: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.open", failing)
    with pytest.raises(Stopped, match=rf"{FISH}_1.xml: Input/output error; run the same command again"):
        listed(trial)


# ---- what becomes of the picture


def test_each_object_becomes_an_entry_in_the_order_of_the_xml(trial: Trial) -> None:
    trial.draw(f"{FISH}_1.xml", xml((SHARK, (50, 0, 100, 80)), (FISH, (0, 0, 50, 40)), (SHARK, (0, 0, 100, 80))))
    entries, doubts = listed(trial)
    first = trial.inner()[0]
    assert entries[:3] == [
        replace(first, label=1, boxes=((0.5, 0.0, 1.0, 1.0),)),
        replace(first, label=0, boxes=((0.0, 0.0, 0.5, 0.5),)),
        replace(first, label=1, boxes=((0.0, 0.0, 1.0, 1.0),)),
    ]
    assert entries[3:] == trial.inner()[1:]
    assert doubts == [f"pictures without a usable box, taken whole: 2 (first train/{FISH}/{FISH}_2.JPEG)"]


def test_pictures_without_a_box_are_whole_or_skipped(trial: Trial) -> None:
    trial.draw(f"{FISH}_1.xml", xml())
    trial.draw(f"{FISH}_2.xml", xml((FISH, (5, 5, 5, 5)), (FISH, (1, 1, 9, 90))))
    trial.draw(f"{SHARK}_3.xml", xml(INSIDE))
    for keep in (0, 3):
        entries, doubts = listed(trial, without="keep", least=9, keep=keep)
        assert entries[:2] == trial.inner()[:2]
        assert len(entries) == 3
        entries, skipped = listed(trial, without="skip", least=9, keep=keep)
        assert [entry.text for entry in entries] == [f"train/{SHARK}/{SHARK}_3.JPEG"]
        assert doubts[1:] == [
            f"boxes with no area inside their picture, left out: 1 (first train/{FISH}/{FISH}_2.JPEG)",
            f"boxes with a side under 9 pixels, left out: 1 (first train/{FISH}/{FISH}_2.JPEG)",
        ]
        boxless, two = "pictures without a usable box", f": 2 (first train/{FISH}/{FISH}_1.JPEG)"
        assert doubts[0] == f"{boxless}{'' if keep else ', taken whole'}{two}"
        assert skipped == [f"{boxless}, left out{two}", *doubts[1:]]


def test_up_to_k_boxes_are_kept_beside_the_picture_with_its_own_label(trial: Trial) -> None:
    many = [("dog", (0.0, 0.0, 10.0 * n, 80.0)) for n in range(5)]
    trial.draw(f"{FISH}_1.xml", xml(*many))
    trial.draw(f"{FISH}_2.xml", xml(*many[:3]))
    source = trial.source(keep=2)
    entries = list(source.entries())
    kept = ((0.0, 0.0, 0.1, 1.0), (0.0, 0.0, 0.2, 1.0))
    first = [replace(entry, boxes=kept, box_names=("dog", "dog")) for entry in trial.inner()[:2]]
    assert entries == first + trial.inner()[2:]
    assert [cls.name for cls in source.classes()] == [FISH, SHARK, DOG]
    more = f"pictures with more than 2 boxes, of which the first are kept: 1 (first train/{FISH}/{FISH}_1.JPEG)"
    assert more in source.doubts(3)


def test_an_object_is_labelled_by_class_name_by_a_word_of_one_description_or_anew(trial: Trial) -> None:
    names = [
        SHARK,
        "TENCH",
        "white shark",
        "tinca Tinca",
        "dog",
        "crane",
        " Chihuahua ",
        "dog",
        "Dog",
        "tench, Tinca tinca",
    ]
    trial.draw(f"{FISH}_1.xml", xml(*((name, (0, 0, 50, 40)) for name in names[:5])))
    trial.draw(f"{SHARK}_3.xml", xml(*((name, (0, 0, 50, 40)) for name in names[5:])))
    source = trial.source(without="skip")
    assert len(source.classes()) == 3
    for _ in range(2):  # a source may be listed again
        assert [entry.label for entry in source.entries()] == [1, 0, 1, 0, 3, 4, 2, 3, 5, 6]
        assert source.classes()[:3] == tuple(ImageClass(*item) for item in DESCRIPTIONS.items())
        assert [cls.name for cls in source.classes()[3:]] == ["dog", "crane", "Dog", "tench, Tinca tinca"]
        assert source.doubts(10)[-1] == "names of objects that were no class and now are: 4 (first dog, crane, Dog)"


def test_a_kept_box_has_the_name_of_the_class_that_its_object_would_have(trial: Trial) -> None:
    names = [SHARK, "TENCH", "dog", "crane", "Dog"]
    trial.draw(f"{FISH}_1.xml", xml(*((name, (0, 0, 50, 40)) for name in names)))
    assert next(trial.source(keep=5).entries()).box_names == (SHARK, FISH, "dog", "crane", "Dog")


def test_annotations_of_no_picture_and_of_two_are_told(trial: Trial) -> None:
    (trial.src / "train" / DOG / f"{FISH}_1.png").write_bytes(b"a picture")
    for name in (f"{FISH}_1", f"{FISH}_9", f"{FISH}_8"):
        trial.draw(f"{name}.xml", xml(INSIDE))
    entries, doubts = listed(trial, without="skip")
    assert [entry.text for entry in entries] == [f"train/{FISH}/{FISH}_1.JPEG", f"train/{DOG}/{FISH}_1.png"]
    assert doubts[1:] == [
        f"pictures whose annotation is another picture's, too: 1 (first train/{DOG}/{FISH}_1.png)",
        f"annotations in {trial.boxes} that belong to no picture: 2 (first {FISH}_8.xml)",
    ]


def test_problems_of_the_source_pass_untouched(trial: Trial) -> None:
    (trial.src / "train" / FISH / f"{FISH}_1.JPEG").write_bytes(b"")
    trial.draw(f"{FISH}_1.xml", "no annotation at all")
    trial.draw(f"{FISH}_2.xml", xml(INSIDE))
    entries, doubts = listed(trial)
    assert entries[0] == trial.inner()[0]
    assert entries[0].problem == "empty file"
    assert doubts == [f"pictures without a usable box, taken whole: 1 (first train/{SHARK}/{SHARK}_3.JPEG)"]


def test_all_else_is_the_inner_sources(trial: Trial) -> None:
    for name in (f"{FISH}_1", f"{FISH}_2", f"{SHARK}_3"):
        trial.draw(f"{name}.xml", xml(INSIDE, INSIDE))
    inner = Tree(trial.src)
    source: Any = BoxedSource(inner, trial.boxes, BoxRules())
    assert source.kind == "tree+boxes"
    assert (source.root, source.top, source.read_unit) == (trial.src, trial.src / "train", "pair")
    assert source.keeps_order
    assert source.found == f"tree, 3 classes, boxes from {trial.boxes}"
    entries = list(source.entries())
    assert [(entry.unit, entry.place) for entry in entries] == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2)]
    assert source.doubts(len(entries)) == ["a doubt"]
    assert inner.doubted == [3]  # what it listed itself
    assert source.read(entries[3]) == b"a picture"
    assert source.row_maker(source) is source
    assert source.facts() == inner.facts()


def test_a_plan_makes_the_inner_source_of_it(trial: Trial) -> None:
    trial.draw(f"{FISH}_1.xml", xml(INSIDE))
    source = BoxedSource(FolderSource(trial.src / "train"), trial.boxes, BoxRules())
    entries = list(source.entries())
    again = open_source(source.kind, source.root, source.facts())
    assert type(again) is FolderSource
    assert again.read(entries[0]) == b"a picture"


def test_on_a_network_file_system_they_are_read_many_at_a_time_in_order(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100, 140):
        (trial.src / "train" / FISH / f"{FISH}_{number}.JPEG").write_bytes(b"a picture")
        trial.draw(f"{FISH}_{number}.xml", xml((FISH, (0, 0, number - 99, 80))))
    expected, _ = listed(trial)
    together = threading.Barrier(4)
    read = Annotations.read
    calls = itertools.count()

    def reading(self: Annotations, name: bytes) -> Annotation:
        if next(calls) < 4:
            together.wait(20)  # would break if they came one by one
        return read(self, name)

    monkeypatch.setattr(Annotations, "read", reading)
    monkeypatch.setattr(parallel_stat, "network_file_system", lambda path: "NFS")
    monkeypatch.setattr(parallel_stat, "STATS_AT_ONCE", 8)
    assert listed(trial)[0] == expected
    assert len(expected) == 43


def test_names_that_are_not_utf8_are_found(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    name = b"\xff\n1"
    (tmp_path / "src/train" / FISH / os.fsdecode(name + b".JPEG")).write_bytes(b"a picture")
    trial.draw(os.fsdecode(name + b".xml"), xml(INSIDE))
    assert [len(entry.boxes) for entry in listed(trial)[0]] == [1]
    assert Annotations(trial.boxes).read(b"other.JPEG") is NOT_ANNOTATED
    trial.draw(os.fsdecode(name + b".xml"), "<")
    assert listed(trial)[0][0].problem.startswith("\udcff\n1.xml: not well-formed")


def test_pixels_are_those_of_the_box(tmp_path: Path) -> None:
    from decodeonce.prep.build import Work, build
    from decodeonce.prep.recipe import Recipe
    from decodeonce.store import open_store
    from tests.images import picture

    trial = Trial(tmp_path, f"{FISH}_1")
    image = picture(100, 80)
    image.save(trial.src / "train" / FISH / f"{FISH}_1.JPEG", "PNG")
    trial.draw(f"{FISH}_1.xml", xml(("dog", (10, 20, 30, 40)), (SHARK, (50, 10, 70, 30))))
    source = BoxedSource(FolderSource(trial.src / "train"), trial.boxes, BoxRules())
    recipe = Recipe(height=20, width=20, shuffle_seed=None, boxes=BoxRules())
    manifest = build(source, tmp_path / "out", recipe, Work(workers=1))
    store = open_store(tmp_path / "out")
    assert [cls.name for cls in manifest.classes] == [FISH, SHARK, DOG, "dog"]
    assert store.labels.tolist() == [3, 1]
    for row, box in enumerate([(10, 20, 30, 40), (50, 10, 70, 30)]):
        np.testing.assert_array_equal(store.images[row], np.asarray(image.crop(box)))
