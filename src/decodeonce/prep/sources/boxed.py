"""Add bounding boxes to any source: a row for each object, or boxes as columns next to whole images.

The boxes come from the XML annotations of ILSVRC and Pascal VOC. Real annotations have these defects. Coordinates refer
to <size>, which is not always the JPEG's size. Boxes are inverted or leave the image. <filename> may be "%s" or another
image's, so it is not read. Some names are words ("dog"), not wnids.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers.expat import ExpatError, ParserCreate

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError, raise_file_system_failure
from decodeonce.prep.entry import WHOLE, Box, Entry, RowMaker, name_text
from decodeonce.prep.pixels.geometry import fit_to, turned_box, upright
from decodeonce.prep.recipe import BoxRules, Recipe
from decodeonce.prep.sources.base import WITH_BOXES, DecodedRows, Source
from decodeonce.prep.sources.files import parallel_map, stem_of
from decodeonce.prep.sources.safe_open import Links
from decodeonce.store.manifest import BOX_COLUMNS, BOX_LABELS, Column, ImageClass

SUFFIX = b".xml"
MAX_XML_BYTES = 1 << 20  # an annotation of ILSVRC has 500 bytes, plus 230 per further object
# Left, top, right, bottom in pixels of the annotation's <size>, clipped to it.
Edges = tuple[float, float, float, float]
EDGES, NUMBERS = "edges", "numbers"  # planned for kept boxes: 4 fractions each, then NaN; number of the name, then -1


class BoxedSource(Source):
    """A source whose images have bounding boxes from XML annotations of ILSVRC or Pascal VOC.

    By default every object becomes a row of its own. With `rules.keep`, whole images are kept, with up to `keep` boxes
    each in the columns `boxes`, `box_count` and `box_labels`. An annotation belongs to the image with the same file
    name without suffix.

    Args:
        source: The source of the images.
        boxes: Folder of annotations, `*.xml` at any depth.
        rules: How boxes are used. Pass the same rules to `Recipe`.
        follow_links: Whether links may lead out of `boxes`. Default False: the image of such a link is rejected.

    Raises:
        BuildError: From `entries`, if `boxes` is not a folder or has no annotations, two annotations have the same
            name, or none belongs to an image.

    Example:
        >>> rules = BoxRules(margin=0.1)
        >>> source = BoxedSource(open_imagenet("imagenet"), Path("boxes"), rules)
        >>> build(source, Path("objects.store"), Recipe(height=224, width=224, boxes=rules))
    """

    def __init__(self, source: Source, boxes: Path, rules: BoxRules, *, follow_links: bool = False) -> None:
        super().__init__(source.root)
        self.kind, self.read_unit = source.kind + WITH_BOXES, source.read_unit
        self.column_names = source.column_names
        self.source = source
        self.boxes = boxes
        self.rules = rules
        self._links = Links(boxes, follow=follow_links)
        self._start()

    @classmethod
    def from_facts(cls, source: Source, facts: dict[str, Any]) -> BoxedSource:
        """Make this source again from its inner source and `facts`."""
        boxed = cls(source, Path(facts["boxes"]), BoxRules(**facts["rules"]))
        boxed._numbers = {name: number for number, name in enumerate(facts["names"])}
        return boxed

    @property
    def top(self) -> Path:
        return self.source.top

    @property
    def keeps_order(self) -> bool:
        return self.source.keeps_order

    @property
    def found(self) -> str:
        return f"{self.source.found}, boxes from {self.boxes}"

    def warnings(self, samples: int) -> list[str]:
        if self._new:
            first = ", ".join(self._new[:3])
            self._seen["object names that became new classes"] = (len(self._new), first)
        seen = [f"{what}: {times} (first {first})" for what, (times, first) in self._seen.items()]
        return [*self.source.warnings(self._samples), *seen]

    def facts(self) -> dict[str, Any]:
        own = {"boxes": str(self.boxes), "rules": asdict(self.rules), "names": list(self._numbers)}
        return {"source": self.source.facts(), **own}

    def options(self) -> dict[str, Any]:
        return self.source.options()

    def classes(self) -> tuple[ImageClass, ...]:
        """Return the inner source's classes, then new classes of objects. They are complete after `entries` has run."""
        return (*self.source.classes(), *map(ImageClass, self._new))

    def entries(self) -> Iterator[Entry]:
        """Yield the inner source's entries in its order, with boxes. Objects of an image have the order of the XML.

        An image whose annotation cannot be used is an entry with a problem.
        """
        self._start()
        if not os.path.isdir(self.boxes):
            what = "not a folder" if os.path.exists(self.boxes) else "no such folder"
            raise BuildError(f"{self.boxes}: {what}; expected a folder of unpacked annotations (*.xml) after --boxes")
        annotations, used = Annotations(self.boxes, self._links), set[bytes]()
        read = parallel_map(self.boxes, lambda entry: (entry, annotations.read(entry.name)), self.source.entries())
        for entry, annotation in read:
            self._samples += not entry.problem
            if annotation is not NOT_ANNOTATED:
                if (stem := stem_of(entry.name)) in used:
                    self._note("images that share an annotation with another image", entry.text)
                used.add(stem)
            yield from self._with_boxes(entry, annotation)
        if unused := annotations.files_except(used):
            if not used:
                raise BuildError(f"{self.boxes}: {unused[0]} and all other annotations match no image in {self.root}")
            self._note(f"annotations in {self.boxes} that match no image", unused[0], len(unused))

    def read(self, entry: Entry) -> bytes:
        return self.source.read(entry)

    def holder(self, entry: Entry) -> bytes:
        return self.source.holder(entry)

    def row_maker(self, recipe: Recipe) -> RowMaker | None:
        return self.source.row_maker(recipe)

    def columns(self) -> list[Column]:
        """Return the inner source's columns, then those of the kept boxes."""
        keep = self.rules.keep
        kept = [
            Column("boxes", "boxes.npy", "<f4", (keep, 4)),  # in pixels of the row, then 0
            Column("box_count", "box_count.npy", "<i4", ()),
            Column(BOX_LABELS, "box_labels.npy", "<i4", (keep,)),  # then -1
        ]
        return [*self.source.columns(), *(kept if keep else [])]

    def column_values(self, column: Column, rows: DecodedRows) -> NDArray[Any]:
        """Return the values of a column. Boxes are moved with their image; those outside the row are left out."""
        if column.name not in BOX_COLUMNS:
            return self.source.column_values(column, rows)
        boxes = _placed(rows)
        present = np.all(boxes[:, :, :2] < boxes[:, :, 2:], axis=2)  # those with an area
        if column.name == "boxes":
            return _packed(boxes, present, 0)
        if column.name == BOX_LABELS:
            label_of = {name: label for label, name in enumerate(sorted(self._numbers))}
            labels = np.array([*map(label_of.__getitem__, self._numbers), -1])  # the number -1 gives the label -1
            return _packed(labels[rows.planned[NUMBERS]], present, -1)
        counts: NDArray[Any] = present.sum(1)
        return counts

    def manifest_facts(self, recipe: dict[str, Any], digest: str) -> dict[str, Any]:
        """Return the keys that every source gives, and the classes of kept boxes. Complete after `entries` has run."""
        facts = super().manifest_facts(recipe, digest)
        return {**facts, "box_classes": sorted(self._numbers)} if self.rules.keep else facts

    def _start(self) -> None:
        self._names: dict[str, int] = {}
        self._words: dict[str, str] = {}
        self._new: list[str] = []
        self._numbers: dict[str, int] = {}  # by class name of kept boxes, in order of appearance
        self._samples = 0
        self._seen: dict[str, tuple[int, str]] = {}

    def _note(self, what: str, where: str, times: int = 1) -> None:
        before, first = self._seen.get(what, (0, where))
        self._seen[what] = (before + times, first)

    def _with_boxes(self, entry: Entry, annotation: Annotation) -> Iterator[Entry]:
        keep, found = self.rules.keep, list(self._usable(entry, annotation))
        if problem := entry.problem or annotation.problem:
            yield replace(entry, problem=problem)
            return
        if not found:
            whole = self.rules.without == "keep"
            done = ", skipped" if not whole else "" if keep else ", kept whole"  # with `keep`, all images are whole
            self._note(f"images without a usable box{done}", entry.text)
            if not whole:
                return
        if keep and len(found) > keep:
            self._note(f"images with more than {keep} boxes; only the first {keep} are kept", entry.text)
        if keep or not found:
            yield self._planned(entry, found[:keep])
        else:
            yield from (self._planned(replace(entry, label=self._label(each[0])), [each]) for each in found)

    def _planned(self, entry: Entry, found: list[tuple[str, Box]]) -> Entry:
        """Return the entry with boxes."""
        keep, boxes = self.rules.keep, [box for _, box in found]
        names = [self._class_name(name) for name, _ in found] if keep else []
        edges = [*chain(*boxes), *WHOLE * ((keep or 1) - len(boxes))]
        numbers: list[float] = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
        planned = {EDGES: edges, NUMBERS: numbers + [-1] * (keep - len(names))} if keep else {"box": edges}
        facts = (*(",".join(map(repr, box)) for box in boxes), *map(ascii, names))
        return replace(entry, planned=planned, facts=facts)

    def _usable(self, entry: Entry, annotation: Annotation) -> Iterator[tuple[str, Box]]:
        for name, edges in annotation.objects:
            box = usable_box(edges, annotation, self.rules)
            if isinstance(box, str):
                self._note(box, entry.text)
            else:
                yield name, box

    def _label(self, name: str) -> int:
        name = self._class_name(name)
        if name not in self._names:
            self._names[name] = len(self.classes())
            self._new.append(name)
        return self._names[name]

    def _class_name(self, name: str) -> str:
        """Return the name of the class with this name, or of the only one with this word in its description.

        Without such a class, return the name itself.
        """
        if not self._names:  # not earlier: some sources know their classes only after their first entry
            classes = self.source.classes()
            self._names = {cls.name: label for label, cls in enumerate(classes)}
            self._words = class_by_word(classes)
        return name if name in self._names else self._words.get(name.casefold(), name)


def class_by_word(classes: Sequence[ImageClass]) -> dict[str, str]:
    """Return the name of the class for every casefolded word that is in the description of exactly one class."""
    by_class = {cls.name: {word.strip().casefold() for word in cls.description.split(",")} for cls in classes}
    words = [(word, name) for name, some in by_class.items() for word in some]
    times = Counter(word for word, _ in words)
    return {word: name for word, name in words if times[word] == 1}


def _placed(rows: DecodedRows) -> NDArray[np.float64]:
    """Return the boxes moved with their image into the row: rotated, scaled, shifted and clipped, (n, K, 4).

    Missing boxes are NaN, and those outside have no area. Each of the three columns computes this again, for many
    rows at once: 2 µs per row, where one row at a time takes 25 µs.
    """
    recipe, facts = rows.recipe, rows.facts[["width", "height", "turn"]].tolist()
    boxes: NDArray[np.float64] = rows.planned[EDGES].reshape(len(facts), -1, 4).copy()
    fits = np.empty((len(facts), 1, 4))
    for index, (width, height, turn) in enumerate(facts):
        fit = fit_to(recipe.fit, upright((width, height), turn), (recipe.width, recipe.height))
        fits[index] = fit.width, fit.height, fit.left, fit.top
        if turn != 1:
            boxes[index] = [turned_box(box, turn) for box in boxes[index].tolist()]
    placed = boxes * fits[:, :, [0, 1, 0, 1]] - fits[:, :, [2, 3, 2, 3]]
    return placed.clip(0, 2 * (recipe.width, recipe.height))


def _packed(values: NDArray[Any], present: NDArray[np.bool_], absent: int) -> NDArray[Any]:
    """Return the values (n, K, ...) with those of present boxes first in each row, padded with `absent`."""
    packed = np.full_like(values, absent)
    packed[np.sort(present)[:, ::-1]] = values[present]
    return packed


class Annotation(NamedTuple):
    """The contents of an XML file: its <size> in pixels, and name and edges of each object; or its problem."""

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
        links: Which links may be followed; default None: those that stay in `top`.

    Raises:
        BuildError: If there is no annotation, or two have the same stem.
    """

    def __init__(self, top: Path, links: Links | None = None) -> None:
        self._links = links or Links(top)
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
                return parse(file.read(MAX_XML_BYTES + 1))
        except OSError as error:
            raise_file_system_failure(error, path)
            problem = error.strerror
        except ValueError as error:
            problem = str(error)
        return Annotation(problem=f"{name_text(stem)}.xml: {problem}")

    def files_except(self, stems: set[bytes]) -> list[str]:
        """Return the names of the files whose stem is not in `stems`, sorted."""
        return [f"{name_text(stem)}.xml" for stem in sorted(self._folders.keys() - stems)]


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


def parse(data: bytes) -> Annotation:
    """Parse an annotation; raise ValueError with the reason if it cannot be used."""
    if len(data) > MAX_XML_BYTES:
        raise ValueError(f"more than {MAX_XML_BYTES} bytes")
    root = _tree(data)
    if root.tag != "annotation":
        raise ValueError(f"<{root.tag[:40]}>, expected <annotation>")
    width, height = (_number(root, "size", side) for side in ("width", "height"))
    if width <= 0 or height <= 0:
        raise ValueError(f"size is {width:g}x{height:g}, so its boxes are nowhere")
    return Annotation(width, height, tuple(_object(found, width, height) for found in root.iterfind("object")))


def _object(found: Element, width: float, height: float) -> tuple[str, Edges]:
    name = (found.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object without a name")
    left, right = sorted(min(max(_number(found, "bndbox", edge), 0.0), width) for edge in ("xmin", "xmax"))
    top, bottom = sorted(min(max(_number(found, "bndbox", edge), 0.0), height) for edge in ("ymin", "ymax"))
    return name, (left, top, right, bottom)


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
    builder, parser = TreeBuilder(), ParserCreate()
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
