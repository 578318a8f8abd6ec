"""Add bounding boxes to any source: a row for each object, or boxes as columns next to whole images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Box, Entry, RowMaker
from decodeonce.prep.recipe import BoxRules, Recipe
from decodeonce.prep.sources.base import WITH_BOXES, Source
from decodeonce.prep.sources.files import parallel_map, stem_of
from decodeonce.prep.sources.formats.annotations import NOT_ANNOTATED, Annotation, Annotations, usable_box
from decodeonce.prep.sources.formats.labels import labels_by_word
from decodeonce.prep.sources.safe_open import Links
from decodeonce.store.manifest import ImageClass


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
        BuildError: If `boxes` is not a folder. `entries` raises it if the folder has no annotations, two annotations
            have the same name, or none belongs to an image.

    Example:
        >>> rules = BoxRules(margin=0.1)
        >>> source = BoxedSource(open_imagenet("imagenet"), Path("boxes"), rules)
        >>> build(source, Path("objects.store"), Recipe(height=224, width=224, boxes=rules))
    """

    def __init__(self, source: Source, boxes: Path, rules: BoxRules, *, follow_links: bool = False) -> None:
        super().__init__(source.root)
        if not os.path.isdir(boxes):
            what = "not a folder" if os.path.exists(boxes) else "no such folder"
            raise BuildError(f"{boxes}: {what}; expected a folder of unpacked annotations (*.xml) after --boxes")
        self.kind, self.read_unit = source.kind + WITH_BOXES, source.read_unit
        self.column_names = source.column_names
        self.source = source
        self.boxes = boxes
        self.rules = rules
        self._links = Links(boxes, follow=follow_links)
        self._start()

    @property
    def top(self) -> Path:
        return self.source.top

    @property
    def keeps_order(self) -> bool:
        return self.source.keeps_order

    @property
    def found(self) -> str:
        return f"{self.source.found}, boxes from {self.boxes}"

    def doubts(self, samples: int) -> list[str]:
        if self._new:
            first = ", ".join(self._new[:3])
            self._seen["object names that became new classes"] = (len(self._new), first)
        seen = [f"{what}: {times} (first {first})" for what, (times, first) in self._seen.items()]
        return [*self.source.doubts(self._samples), *seen]

    def facts(self) -> dict[str, Any]:
        return self.source.facts()

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
        annotations, used = Annotations(self.boxes, self._links), set[bytes]()
        for entry, annotation in self._annotated(annotations):
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

    def _start(self) -> None:
        self._names: dict[str, int] = {}
        self._words: dict[str, int] = {}
        self._known: list[str] = []
        self._new: list[str] = []
        self._samples = 0
        self._seen: dict[str, tuple[int, str]] = {}

    def _note(self, what: str, where: str, times: int = 1) -> None:
        before, first = self._seen.get(what, (0, where))
        self._seen[what] = (before + times, first)

    def _annotated(self, annotations: Annotations) -> Iterator[tuple[Entry, Annotation]]:
        def read(entry: Entry) -> tuple[Entry, Annotation]:
            return entry, annotations.read(entry.name)

        return parallel_map(self.boxes, read, self.source.entries())

    def _with_boxes(self, entry: Entry, annotation: Annotation) -> Iterator[Entry]:
        keep, found = self.rules.keep, list(self._usable(entry, annotation))
        if problem := entry.problem or annotation.problem:
            yield replace(entry, problem=problem)
        elif not found:
            whole = self.rules.without == "keep"
            done = ", skipped" if not whole else "" if keep else ", kept whole"  # with `keep`, all images are whole
            self._note(f"images without a usable box{done}", entry.text)
            if whole:
                yield entry
        elif keep:
            if len(found) > keep:
                self._note(f"images with more than {keep} boxes; only the first {keep} are kept", entry.text)
            names, boxes = zip(*found[:keep], strict=True)
            yield replace(entry, boxes=boxes, box_names=tuple(map(self._class_name, names)))
        else:
            yield from (replace(entry, label=self._label(name), boxes=(box,)) for name, box in found)

    def _usable(self, entry: Entry, annotation: Annotation) -> Iterator[tuple[str, Box]]:
        for name, edges in annotation.objects:
            box = usable_box(edges, annotation, self.rules)
            if isinstance(box, str):
                self._note(box, entry.text)
            else:
                yield name, box

    def _known_label(self, name: str) -> int | None:
        """Return the label of the class with this name, or of the only class with this word in its description."""
        if not self._names:  # not earlier: some sources know their classes only after their first entry
            classes = self.source.classes()
            self._names, self._words = {cls.name: label for label, cls in enumerate(classes)}, labels_by_word(classes)
            self._known = [cls.name for cls in classes]
        return self._names[name] if name in self._names else self._words.get(name.casefold())

    def _label(self, name: str) -> int:
        label = self._known_label(name)
        if label is None:
            label = self._names[name] = len(self.classes())
            self._new.append(name)
        return label

    def _class_name(self, name: str) -> str:
        """Return the name of an object's class, or the object's own name if it has none."""
        label = self._known_label(name)
        return name if label is None else self._known[label]
