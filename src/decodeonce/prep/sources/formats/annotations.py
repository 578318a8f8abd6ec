"""Bounding boxes from the XML annotations of ILSVRC and Pascal VOC, found by an image's file name.

Real annotations have these defects. Coordinates refer to <size>, which is not always the JPEG's size. Boxes are
inverted or leave the image. <filename> may be "%s" or another image's, so it is not read. Some names are words ("dog"),
not wnids.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers.expat import ExpatError, ParserCreate

from decodeonce.errors import BuildError, raise_file_system_failure
from decodeonce.prep.entry import Box, name_text
from decodeonce.prep.recipe import BoxRules
from decodeonce.prep.sources.files import stem_of
from decodeonce.prep.sources.safe_open import Links

SUFFIX = b".xml"
MAX_BYTES = 1 << 20  # an annotation of ILSVRC has 500 bytes, plus 230 per further object
Edges = tuple[
    float, float, float, float
]  # left, top, right, bottom in pixels of the annotation's <size>, clipped to it


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
            for name in names:
                if name.endswith(SUFFIX):
                    self._add(folder, name)
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
                return parse(file.read(MAX_BYTES + 1))
        except OSError as error:
            raise_file_system_failure(error, path)
            problem = error.strerror
        except ValueError as error:
            problem = str(error)
        return Annotation(problem=f"{name_text(stem)}.xml: {problem}")

    def files_except(self, stems: set[bytes]) -> list[str]:
        """Return the names of the files whose stem is not in `stems`, sorted."""
        return [f"{name_text(stem)}.xml" for stem in sorted(self._folders.keys() - stems)]

    def _add(self, folder: bytes, name: bytes) -> None:
        other = self._folders.setdefault(stem_of(name), folder)
        if other is not folder:
            first, second = (os.fsdecode(os.path.join(place, name)) for place in (other, folder))
            raise BuildError(
                f"{first} and {second}: two annotations with the same name; pass a folder that holds only one of them"
            )


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
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
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
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, _no_declarations
    try:
        parser.Parse(data, True)
    except (ExpatError, LookupError) as error:  # LookupError: an encoding that Python does not know
        raise ValueError(f"not well-formed: {error}") from None
    return builder.close()


def _no_declarations(*declared: object) -> None:
    raise ValueError(
        "it declares a document type"
    )  # annotations do not; it could define entities that expand without limit
