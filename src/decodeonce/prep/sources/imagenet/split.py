"""The base of all forms of a split of ImageNet: its classes and its warnings."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from decodeonce.formatting import counted
from decodeonce.prep.entry import name_text
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.imagenet.class_order import ClassOrder
from decodeonce.prep.sources.imagenet.companions import CompanionFiles
from decodeonce.prep.sources.imagenet.val_labels import ValLabels, find_val_labels
from decodeonce.store.manifest import ImageClass

Split = Literal["train", "val"]
AnySplit = Literal[Split, "auto"]
SPLITS: tuple[Split, ...] = get_args(Split)
WHOLE = {"train": 1_281_167, "val": 50_000}  # images of ILSVRC2012
MANY_CLASSES = 900  # with fewer classes it is a chosen subset, and no warning about missing images is given
_WNID = re.compile(r"n\d{8}")


class ImagenetSplit(Source):
    """A split of ImageNet in one of its forms. Made by `open_imagenet`, which also sets the classes.

    Args:
        root: SRC.
        split: "train" or "val".
        classes: Class names (wnids) in label order; default None until `set_classes` is called.
        words: Descriptions by class name; default None: none.
    """

    def __init__(
        self, root: Path, *, split: str, classes: Sequence[str] | None = None, words: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(root)
        self.split = split
        self._names = list(classes or [])
        self._words = dict(words or {})
        self._warnings: list[str] = []
        self._strays: list[str] = []

    @property
    @abstractmethod
    def form(self) -> str:
        """The form and its path, for `found`."""

    @abstractmethod
    def present_classes(self) -> list[str]:
        """Return the classes that its images have, sorted by their bytes."""

    @property
    def is_flat(self) -> bool:
        """Whether its images are in one folder, so that a file must give their labels; default False."""
        return False

    @property
    def companions(self) -> CompanionFiles:
        """Finds the files that describe the split."""
        return CompanionFiles(self.top)

    @cached_property
    def labels(self) -> ValLabels:
        """The labels of images in one folder."""
        return find_val_labels(self.companions)

    def note_stray_files(self, names: Sequence[bytes]) -> None:
        """Warn that these files next to the class folders are skipped: sorting them may have been interrupted."""
        if names:
            first = name_text(names[0])
            self._strays = [f"{self.top}: {len(names)} files next to the class folders are skipped (first {first})"]

    def set_classes(self, order: ClassOrder) -> None:
        """Set the classes, their descriptions and the warnings about them."""
        self._names, self._words, self._warnings = order.names, order.words, order.warnings

    @property
    def keeps_order(self) -> bool:
        """Whether rows keep the source's order unless a shuffle seed is given: for val only."""
        return self.split == "val"

    @property
    def found(self) -> str:
        labels = f", labels from {self.labels.origin}" if self.is_flat else ""
        return f"{self.form}{labels}, {counted(len(self._names), 'class', 'classes')}"

    def doubts(self, samples: int) -> list[str]:
        warnings, whole = [*self._warnings, *self._strays], WHOLE[self.split]
        wnids = sum(1 for name in self._names if _WNID.fullmatch(name))
        if wnids >= MANY_CLASSES and samples != whole:
            warnings.append(f"{samples:,} of the {whole:,} images of ILSVRC2012 {self.split} are present")
        return warnings

    def facts(self) -> dict[str, Any]:
        return {"split": self.split, "classes": self._names, "words": self._words}

    def classes(self) -> tuple[ImageClass, ...]:
        return tuple(ImageClass(name, self._words.get(name, "")) for name in self._names)
