"""Add bounding boxes to any source: a row for each object, or boxes as columns next to whole images.

The boxes come from COCO's JSON or from the XML annotations of ILSVRC and Pascal VOC. What the coordinates of XML mean
depends on the database:

- VOC numbers pixels from 1, and xmax and ymax are the last pixels of the box. The documentation of its development kit
  (VOC2012_doc.pdf) says: "The top-left pixel in the image has coordinates (1,1)." In an image of 500 pixels, boxes at
  the edges begin at 1 and end at 500.
- ILSVRC numbers pixels from 0, and xmax and ymax are the last pixels, too. The readme of its development kit (that of
  2015, section 1.4) only says that annotations are "in PASCAL VOC format", and its evaluation counts xmax - xmin + 1
  pixels. But in an image of 500 pixels, boxes at the edges begin at 0 and end at 499, such as that of n03820318_101.
- Tools that write the same XML, such as labelImg, mean distances from the left and upper edge of the image.

Real annotations have these defects. Coordinates refer to <size>, which is not always the JPEG's size. Boxes are
inverted or leave the image. <filename> may be "%s" or another image's, so it is not read. Some names are words ("dog"),
not wnids.

COCO's boxes have one meaning. Its documentation (cocodataset.org, "Data format") says: "box coordinates are measured
from the top left image corner and are 0-indexed". They are [x, y, width, height], and may have fractions.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers.expat import ExpatError, ParserCreate

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError, raise_file_system_failure
from decodeonce.prep.listing import WHOLE, Box, Entry, LateFacts, Listing, Scan, name_bytes, name_text
from decodeonce.prep.pixels.decode import fit_to
from decodeonce.prep.pixels.unusual import is_upright, turned_box, upright
from decodeonce.prep.recipe import BoxOrigin, BoxRules
from decodeonce.prep.sources.base import DecodedRows, Notes, Source, SourceWrapper
from decodeonce.prep.sources.files import Links, expecting, open_source_file, parallel_map, stem_of
from decodeonce.store.layout import Json
from decodeonce.store.manifest import BOX_COLUMNS, BOX_LABELS, WITH_BOXES, Column, ImageClass

SUFFIX = b".xml"
MAX_XML_BYTES = 1 << 20  # an annotation of ILSVRC has 500 bytes, plus 230 per further object
# Left, top, right, bottom in pixels of the annotation's <size>, clipped to it.
Edges = tuple[float, float, float, float]
# What to add to the first and the last coordinate of a box, to get distances from the edge of the image.
SHIFTS: dict[BoxOrigin, tuple[int, int]] = {"0": (0, 1), "1": (-1, 0), "edge": (0, 0)}
EDGES, LABELS = "edges", "labels"  # numbers of kept boxes: 4 fractions each, then NaN; label of the class, then -1


class BoxedSource(SourceWrapper):
    """A source whose images have bounding boxes from COCO's JSON, or from XML annotations of ILSVRC or Pascal VOC.

    By default every object becomes a row of its own. With `rules.keep`, whole images are kept, with up to `keep` boxes
    each in the columns `boxes`, `box_count` and `box_labels`. An annotation belongs to the image with the same file
    name without suffix.

    Args:
        source: The source of the images.
        boxes: Folder of annotations, `*.xml` at any depth, or a file such as instances_train2017.json. The categories
            of such a file become classes in their order; objects with `iscrowd` or `ignore` are skipped.
        rules: How boxes are used. Pass the same rules to `Recipe`.
        origin: What coordinates of XML mean. "1": numbers of pixels from 1, and xmax and ymax are the last ones in the
            box, as in VOC; "0": the same from 0, as in ILSVRC; "edge": distances from the left and upper edge of the
            image. None (default): decide by the <database> of each annotation, "edge" if it is neither VOC nor ILSVRC.
        follow_links: Whether links may lead out of `boxes`. Default False: the image of such a link is rejected.

    Raises:
        BuildError: From `scan`, if `boxes` cannot be read or has no annotations, two annotations have the same
            name, or none belongs to an image.

    Example:
        >>> rules = BoxRules(margin=0.1)
        >>> source = BoxedSource(open_imagenet("imagenet", split="val"), Path("annotations"), rules)
        >>> build(source, Path("objects.store"), Recipe(height=64, width=64, boxes=rules)).count
        16
    """

    def __init__(
        self,
        source: Source,
        boxes: Path,
        rules: BoxRules,
        *,
        origin: BoxOrigin | None = None,
        follow_links: bool = False,
    ) -> None:
        super().__init__(source, WITH_BOXES)
        self.boxes = boxes
        self.rules = rules
        self._origin = origin
        self._links = Links(boxes, follow=follow_links)

    @property
    def found(self) -> str:
        return f"{self.source.found}, boxes from {self.boxes}"

    def arguments(self) -> Json:
        return {"source": self.source.arguments(), "boxes": str(self.boxes), "rules": asdict(self.rules)}

    def scan(self) -> Scan:
        """Return the inner source's scan with boxes. Objects of an image have the order of the annotation.

        An image whose annotation cannot be used is an entry with a problem. New classes of objects follow those of the
        inner source.
        """
        notes = Notes()
        if os.path.isdir(self.boxes):
            annotations: Annotations | CocoAnnotations = Annotations(self.boxes, self._links, self._origin)
        elif self._origin and os.path.isfile(self.boxes):
            raise BuildError(f"{self.boxes}: boxes in JSON always begin at 0; remove --box-origin, which is for XML")
        else:
            annotations = CocoAnnotations(self.boxes, notes.note)
        inner = self.source.scan()
        known = tuple(inner.classes)
        boxing = _Boxing(known, self.rules, notes)

        def warnings(samples: int) -> list[str]:
            if known != tuple(inner.classes):
                what = f"classes of {type(self.source).__name__} were added while its entries were listed"
                raise BuildError(f"{what}, expected all before; see docs/contribute/sources.md")
            new = boxing.classes[len(known) :] if known else []  # a dataset's classes may be known later
            return [*inner.warnings(boxing.images), *notes.texts(), *_about_new_classes(new)]

        entries = self._boxed(inner.entries, annotations, boxing)
        kept = boxing.numbers if self.rules.keep else None
        return Scan(
            entries, boxing.classes, warnings, kept, lambda found: _with_sorted_boxes(inner.finish(found)), inner.late
        )

    def _boxed(
        self, inner: Iterable[Entry], annotations: Annotations | CocoAnnotations, boxing: _Boxing
    ) -> Iterator[Entry]:
        used = set[bytes]()
        for name in annotations.names:
            boxing.number(name)
        for entry, annotation in parallel_map(self.boxes, lambda e: (e, annotations.read(e.name)), inner):
            boxing.images += not entry.problem
            if annotation is not NOT_ANNOTATED:
                if (stem := stem_of(entry.name)) in used:
                    boxing.notes.note("images that share an annotation with another image", entry.text)
                used.add(stem)
            yield from boxing.entries(entry, annotation)
        if unused := annotations.files_except(used):
            if not used:
                raise BuildError(f"{self.boxes}: {unused[0]} and all other annotations match no image in {self.root}")
            boxing.notes.note(f"annotations in {self.boxes} that match no image", unused[0], len(unused))

    def label_of(self, entry: Entry) -> int:
        """Return the label of an object, or of its image if that is whole."""
        label = self.source.label_of(entry)  # also for an object: it raises BuildError if classes are not known
        return entry.label if entry.box else label

    def with_late_facts(self, planned: Listing, facts: Iterable[LateFacts]) -> Listing:
        """Return the samples with the labels of whole images. New classes of objects follow those of the images."""
        found = self.source.with_late_facts(planned, facts)
        if found is planned or self.rules.keep:
            return found
        new = [cls for cls in planned.classes if cls not in found.classes]
        for warning in _about_new_classes(new):
            logging.getLogger("decodeonce").warning("%s: %s", self.boxes, warning)
        classes = [*found.classes, *new]
        objects = ~np.isnan(planned.numbers["box"][:, 0])
        number_of = np.array([classes.index(cls) for cls in planned.classes])
        found.records["label"][objects] = number_of[planned.records["label"][objects]]
        return replace(found, classes=tuple(classes))

    def columns(self) -> list[Column]:
        """Return the inner source's columns, then those of the kept boxes."""
        keep = self.rules.keep
        kept = [
            Column("boxes", "boxes.npy", "<f4", (keep, 4)),  # in pixels of the row, then 0
            Column("box_count", "box_count.npy", "<i4", ()),
            Column(BOX_LABELS, "box_labels.npy", "<i4", (keep,)),  # then -1
        ]
        return [*self.source.columns(), *(kept if keep else [])]

    def column_values(self, column: Column, rows: DecodedRows) -> np.ndarray:
        """Return the values of a column. Boxes are moved with their image; those outside the row are left out."""
        if column.name not in BOX_COLUMNS:
            return self.source.column_values(column, rows)
        boxes = _placed(rows)
        present = np.all(boxes[:, :, :2] < boxes[:, :, 2:], axis=2)  # those with an area
        if column.name == "boxes":
            return _packed(boxes, present, 0)
        if column.name == BOX_LABELS:
            return _packed(rows.numbers[LABELS], present, -1)
        counts: np.ndarray = present.sum(1)
        return counts


def _about_new_classes(new: Sequence[ImageClass]) -> list[str]:
    first = ", ".join(cls.name for cls in new[:3])
    return [f"object names that became new classes: {len(new)} (first {first})"] if new else []


def _with_sorted_boxes(found: Listing) -> Listing:
    """Return the samples with the labels of kept boxes in the order of the names, not in that of appearance."""
    if found.box_classes is None or not len(found):
        return found
    names = tuple(sorted(found.box_classes))
    label_of = np.array([*map(names.index, found.box_classes), -1])
    numbers = {**found.numbers, LABELS: label_of[found.numbers[LABELS]]}
    return replace(found, numbers=numbers, box_classes=names)


class _Boxing:
    """Makes entries with boxes, and numbers the classes of objects: `classes` of rows, or those of kept boxes."""

    def __init__(self, classes: Sequence[ImageClass], rules: BoxRules, notes: Notes) -> None:
        self.rules, self.notes = rules, notes
        self.images = 0  # that were listed without a problem
        self.classes = [*classes]
        self._of_images = {cls.name: label for label, cls in enumerate(classes)}
        # The number of each class of objects. Those of kept boxes are in order of appearance.
        self.numbers = {} if rules.keep else {**self._of_images}
        self._words = class_by_word(classes)

    def entries(self, entry: Entry, annotation: Annotation) -> Iterator[Entry]:
        keep, found = self.rules.keep, list(self._usable(entry, annotation))
        if problem := entry.problem or annotation.problem:
            yield replace(entry, problem=problem)
            return
        if not found:
            whole = self.rules.without == "keep"
            done = ", skipped" if not whole else "" if keep else ", kept whole"  # with `keep`, all images are whole
            self.notes.note(f"images without a usable box{done}", entry.text)
            if not whole:
                return
        if keep and len(found) > keep:
            self.notes.note(f"images with more than {keep} boxes; only the first {keep} are kept", entry.text)
        if keep or not found:
            yield self._with_boxes(entry, found[:keep], annotation)
            return
        for each in found:
            yield self._with_boxes(replace(entry, label=self.number(each[0])), [each], annotation)

    def _with_boxes(self, entry: Entry, found: list[tuple[str, Box]], size: Annotation) -> Entry:
        """Return the entry with boxes, which are relative to the size of the annotation."""
        keep, boxes = self.rules.keep, [box for _, box in found]
        names = [self._class_name(name) for name, _ in found] if keep else []
        edges = [*chain(*boxes), *WHOLE * ((keep or 1) - len(boxes))]
        labels = [*map(self.number, names), *[-1] * (keep - len(names))]
        own: dict[str, list[float]] = {EDGES: edges, LABELS: [*labels]} if keep else {"box": edges}
        own["annotated"] = [size.width, size.height] if found else [0.0, 0.0]
        digested = (*entry.digested, *(",".join(map(repr, box)) for box in boxes), *map(ascii, names))
        return replace(entry, numbers={**entry.numbers, **own}, digested=digested)

    def _usable(self, entry: Entry, annotation: Annotation) -> Iterator[tuple[str, Box]]:
        for name, edges in annotation.objects:
            box = usable_box(edges, annotation, self.rules)
            if isinstance(box, str):
                self.notes.note(box, entry.text)
            else:
                yield name, box

    def number(self, name: str) -> int:
        """Return the number of the class of an object, which may be a new one. That of a row is its label."""
        name = self._class_name(name)
        if name not in self.numbers:
            self.numbers[name] = len(self.numbers if self.rules.keep else self.classes)
            if not self.rules.keep:
                self.classes.append(ImageClass(name))
        return self.numbers[name]

    def _class_name(self, name: str) -> str:
        """Return the name of the class with this name, or of the only one with this word in its description.

        Without such a class, return the name itself.
        """
        return name if name in self._of_images else self._words.get(name.casefold(), name)


def class_by_word(classes: Sequence[ImageClass]) -> dict[str, str]:
    """Return the name of the class for every casefolded word that is in the description of exactly one class."""
    by_class = {cls.name: {word.strip().casefold() for word in cls.description.split(",")} for cls in classes}
    words = [(word, name) for name, some in by_class.items() for word in some]
    times = Counter(word for word, _ in words)
    return {word: name for word, name in words if times[word] == 1}


def _placed(rows: DecodedRows) -> NDArray[np.float64]:
    """Return the boxes moved with their image into the row: rotated unless upright, scaled, shifted and clipped.

    The shape is (n, K, 4).

    Missing boxes are NaN, and those outside have no area. Each of the three columns computes this again, for many
    rows at once: 2 µs per row, where one row at a time takes 25 µs.
    """
    recipe, facts = rows.recipe, rows.facts[["width", "height", "turn"]].tolist()
    boxes: NDArray[np.float64] = rows.numbers[EDGES].reshape(len(facts), -1, 4).copy()
    fits = np.empty((len(facts), 1, 4))
    annotated = rows.numbers["annotated"].tolist()
    for index, (width, height, turn) in enumerate(facts):
        fit = fit_to(recipe.fit, upright((width, height), turn), (recipe.width, recipe.height))
        fits[index] = fit.width, fit.height, fit.left, fit.top
        if turn != 1 and not is_upright(annotated[index], (width, height), turn):
            boxes[index] = [turned_box(box, turn) for box in boxes[index].tolist()]
    placed = boxes * fits[:, :, [0, 1, 0, 1]] - fits[:, :, [2, 3, 2, 3]]
    return placed.clip(0, 2 * (recipe.width, recipe.height))


def _packed(values: np.ndarray, present: NDArray[np.bool_], absent: int) -> np.ndarray:
    """Return the values (n, K, ...) with those of present boxes first in each row, padded with `absent`."""
    packed = np.full_like(values, absent)
    packed[np.sort(present)[:, ::-1]] = values[present]
    return packed


class Annotation(NamedTuple):
    """The annotation of an image: its size in pixels, and name and edges of each object; or its problem."""

    width: float = 0.0
    height: float = 0.0
    objects: tuple[tuple[str, Edges], ...] = ()
    problem: str = ""


NOT_ANNOTATED = Annotation()


class Annotations:
    """Every <stem>.xml below a folder, at any depth, except hidden ones (".name").

    A folder that several links lead to counts once.

    Args:
        top: The folder.
        links: Which links may be followed.
        origin: What coordinates mean, as for `BoxedSource`.

    Raises:
        BuildError: If there is no annotation, or two have the same stem.
    """

    names: tuple[str, ...] = ()  # of all classes in order, which XML does not say

    def __init__(self, top: Path, links: Links, origin: BoxOrigin | None) -> None:
        self._links, self._origin = links, origin
        self._folders: dict[bytes, bytes] = {}  # by stem: 130 bytes each, 70 MB for the 550,000 of ILSVRC
        for folder, names in self._links.walk():
            for name in (name for name in names if name.endswith(SUFFIX)):
                if (other := self._folders.setdefault(stem_of(name), folder)) is not folder:
                    first, second = (os.fsdecode(os.path.join(place, name)) for place in (other, folder))
                    same = "two annotations with the same name; pass a folder that holds only one of them"
                    raise BuildError(f"{first} and {second}: {same}")
        if not self._folders:
            raise BuildError(
                f"{top}: contains no *.xml; expected unpacked annotations, such as n01440764/n01440764_10040.xml"
            )

    def read(self, name: bytes) -> Annotation:
        """Return the annotation of the image `name`, or NOT_ANNOTATED; raise Stopped or BuildError if access fails."""
        stem = stem_of(name)
        if stem not in self._folders:
            return NOT_ANNOTATED
        path = os.path.join(self._folders[stem], stem + SUFFIX)
        try:
            with open(self._links.open(path), "rb", buffering=0) as file:
                return parse(file.read(MAX_XML_BYTES + 1), self._origin)
        except OSError as error:
            raise_file_system_failure(error, path)
            problem = error.strerror
        except ValueError as error:
            problem = str(error)
        return Annotation(problem=f"{name_text(stem)}.xml: {problem}")

    def files_except(self, stems: set[bytes]) -> list[str]:
        """Return the names of the files whose stem is not in `stems`, sorted."""
        return [f"{name_text(stem)}.xml" for stem in sorted(self._folders.keys() - stems)]


class CocoAnnotations:
    """The annotations in a JSON file of COCO's form, by the names of their images without folders and suffix.

    Args:
        file: The file. It is read whole, without the outlines of objects. A file like COCO's train2017, with 118,000
            images and 860,000 objects in 540 MB, took 33 s and up to 1.7 GB of memory.
        note: Called with what was left out, the name of an image, and how often.

    Raises:
        BuildError: If the file is not such a file. A bad size or object is a problem of its image only.
    """

    def __init__(self, file: Path, note: Callable[[str, str, int], None]) -> None:
        self._file, self._note = file, note
        self._found: dict[bytes, Annotation] = {}
        expected = "expected unpacked annotations after --boxes: a folder of *.xml, or COCO's instances_*.json"
        try:
            with expecting(file, expected), open(open_source_file(file), "rb") as opened:
                found = _parse_json(opened)
            self._categories = {key: _name(each, "name") for key, each in _by_id(found, "categories").items()}
            self.names = tuple(self._categories.values())
            objects: dict[Any, list[Json]] = {}
            for each in _listed(found, "annotations"):
                objects.setdefault(_field(each, "image_id"), []).append(each)
            for number, image in _by_id(found, "images").items():
                name = _name(image, "file_name")
                stem = stem_of(name_bytes(name))
                if stem in self._found:
                    raise ValueError(f"two images are called {name_text(stem)!r} without folder and suffix")
                self._found[stem] = self._annotation(image, name, objects.pop(number, []))
        except ValueError as error:
            raise BuildError(f"{file}: {error}; {expected}") from None
        for unknown, left in objects.items():
            note("skipped objects whose images are not listed", f"image_id {unknown!r}", len(left))

    def read(self, name: bytes) -> Annotation:
        """Return the annotation of the image `name`, or NOT_ANNOTATED."""
        return self._found.get(stem_of(name), NOT_ANNOTATED)

    def files_except(self, stems: set[bytes]) -> list[str]:
        """Return the names of the images whose stem is not in `stems`, sorted."""
        return [name_text(stem) for stem in sorted(self._found.keys() - stems)]

    def _annotation(self, image: Json, name: str, objects: list[Json]) -> Annotation:
        kept = [each for each in objects if not (each.get("iscrowd") or each.get("ignore"))]
        if len(kept) < len(objects):
            self._note("objects with iscrowd or ignore, skipped", name, len(objects) - len(kept))
        try:
            width, height = _numbers([image.get("width"), image.get("height")], "width and height", 2)
            if width <= 0 or height <= 0:
                raise ValueError(f"size is {width:g}x{height:g}, so its boxes are nowhere")
            return Annotation(width, height, tuple(self._object(each, width, height) for each in kept))
        except ValueError as error:
            return Annotation(problem=f"{self._file.name}: {error}")

    def _object(self, found: Json, width: float, height: float) -> tuple[str, Edges]:
        if (category := _field(found, "category_id")) not in self._categories:
            raise ValueError(f"an object has category_id {category!r}, which is not in its categories")
        x, y, across, down = _numbers(_present(found, "bbox"), "bbox", 4)
        left, right = _between((x, x + across), width, SHIFTS["edge"])
        top, bottom = _between((y, y + down), height, SHIFTS["edge"])
        return self._categories[category], (left, top, right, bottom)


def _parse_json(file: BinaryIO) -> Any:
    def without_outline(found: Json) -> Json:
        found.pop("segmentation", None)  # most of the file
        return found

    try:
        return json.load(file, object_hook=without_outline)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def _listed(found: Any, key: str) -> list[Json]:
    values = found.get(key) if isinstance(found, dict) else None
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        keys = f"; its keys are {list(found)!a:.200}" if isinstance(found, dict) else ""
        raise ValueError(f'it has no list "{key}" of objects{keys}')
    return values


def _by_id(found: Any, key: str) -> dict[int | str, Json]:
    """Return the objects of a list by their id; raise ValueError if two of them have the same one."""
    by_id: dict[int | str, Json] = {}
    for each in _listed(found, key):
        if by_id.setdefault(number := _field(each, "id"), each) is not each:
            raise ValueError(f'"{key}" has the id {number!r} twice, expected another id for each of them')
    return by_id


def _present(found: Json, key: str) -> Any:
    if key not in found:
        advice = "if another key means it, rename that (docs/how-to/boxes-and-maps.md)"
        raise ValueError(f"{key} is missing, found {list(found)!a:.200}; {advice}")
    return found[key]


def _field(found: Json, key: str) -> int | str:
    if not isinstance(value := _present(found, key), int | str) or isinstance(value, bool):  # True would equal the id 1
        raise ValueError(f"{key} is {value!r}, expected a number or a text")
    return value


def _name(found: Json, key: str) -> str:
    if not isinstance(value := _present(found, key), str) or not value.strip():
        raise ValueError(f"{key} is {value!r}, expected a name")
    name_bytes(value)  # raises an error for lone surrogates, which JSON can contain
    return value.strip()


def _numbers(values: Any, what: str, count: int) -> list[float]:
    if isinstance(values, list) and len(values) == count and all(type(each) in (int, float) for each in values):
        with suppress(OverflowError):  # of a long integer
            numbers = list(map(float, values))
            if all(map(math.isfinite, numbers)):
                return numbers
    raise ValueError(f"its {what} is {str(values)[:40]}, expected {count} numbers")


def usable_box(edges: Edges, size: Annotation, rules: BoxRules) -> Box | str:
    """Return the box with its margin, as fractions of the image's sides; or, as text, why it is skipped."""
    left, top, right, bottom = edges
    if left == right or top == bottom:
        return "boxes with no area inside their image, skipped"
    if min(right - left, bottom - top) < rules.least:
        return f"boxes with a side under {rules.least} pixels, skipped"
    x, y = rules.margin * (right - left), rules.margin * (bottom - top)
    right, bottom = min(right + x, size.width), min(bottom + y, size.height)
    return (max(left - x, 0) / size.width, max(top - y, 0) / size.height, right / size.width, bottom / size.height)


def parse(data: bytes, origin: BoxOrigin | None = None) -> Annotation:
    """Parse an annotation; raise ValueError with the reason if it cannot be used. `origin` is as for `BoxedSource`."""
    if len(data) > MAX_XML_BYTES:
        raise ValueError(f"more than {MAX_XML_BYTES} bytes")
    root = _tree(data)
    if root.tag != "annotation":
        raise ValueError(f"<{root.tag[:40]}>, expected <annotation>")
    width, height = (_number(root, "size", side) for side in ("width", "height"))
    if width <= 0 or height <= 0:
        raise ValueError(f"size is {width:g}x{height:g}, so its boxes are nowhere")
    shift = SHIFTS[origin or _origin_of(root.findtext("source/database", ""))]
    return Annotation(width, height, tuple(_object(found, width, height, shift) for found in root.iterfind("object")))


def _origin_of(database: str) -> BoxOrigin:
    """Return what coordinates mean in a database such as "The VOC2007 Database", "ILSVRC_2012" or "Unknown"."""
    if re.search(r"\bVOC\d{4}\b", database):
        return "1"
    return "0" if re.match(r"\s*(ILSVRC|ImageNet)", database) else "edge"


def _object(found: Element, width: float, height: float, shift: tuple[int, int]) -> tuple[str, Edges]:
    name = (found.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object without a name")
    left, right = _between((_number(found, "bndbox", edge) for edge in ("xmin", "xmax")), width, shift)
    top, bottom = _between((_number(found, "bndbox", edge) for edge in ("ymin", "ymax")), height, shift)
    return name, (left, top, right, bottom)


def _between(ends: Iterable[float], side: float, shift: tuple[int, int]) -> tuple[float, float]:
    """Return the edges of a box along one side of the image: in order, shifted and clipped."""
    first, last = sorted(ends)
    return min(max(first + shift[0], 0.0), side), min(max(last + shift[1], 0.0), side)


def _number(parent: Element, group: str, name: str) -> float:
    text = parent.findtext(f"{group}/{name}", "")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"its {group} has {name} {text.strip()[:40]!r}, expected a number")
    return number


def _tree(data: bytes) -> Element:
    builder, parser = TreeBuilder(), ParserCreate()  # XMLParser would put namespaces before the names
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, _refuse_document_type
    try:
        parser.Parse(data, True)
    except (ExpatError, LookupError) as error:  # LookupError: an encoding that Python does not know
        raise ValueError(f"not well-formed: {error}") from None
    return builder.close()


def _refuse_document_type(*declared: object) -> None:
    # Annotations do not declare one; it could define entities that expand without limit.
    raise ValueError("it declares a document type")
