"""What all forms of a split of ImageNet share: its classes, and what people are told of it."""

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
WHOLE = {"train": 1_281_167, "val": 50_000}  # pictures of ILSVRC2012
MANY_CLASSES = 900  # with fewer it is a part that somebody chose, and nobody is told that pictures are missing
_WNID = re.compile(r"n\d{8}")


class ImagenetSplit(Source):
    """One split in one form. `open_imagenet` finds it, and settles its classes; a plan's facts have them."""

    def __init__(
        self, root: Path, *, split: str, classes: Sequence[str] | None = None, words: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(root)
        self.split = split
        self._names = list(classes or [])
        self._words = dict(words or {})
        self._doubts: list[str] = []
        self._strays: list[str] = []

    @property
    @abstractmethod
    def form(self) -> str:
        """What it is, in a few words."""

    @abstractmethod
    def present_classes(self) -> list[str]:
        """The classes that its pictures have, sorted by their bytes."""

    @property
    def is_flat(self) -> bool:
        """Whether its pictures are not in class folders, so that a file must say their labels."""
        return False

    @property
    def companions(self) -> CompanionFiles:
        """Where files that describe it may lie."""
        return CompanionFiles(self.top)

    @cached_property
    def labels(self) -> ValLabels:
        """The labels of pictures that lie in one folder."""
        return find_val_labels(self.companions)

    def note_stray_files(self, names: Sequence[bytes]) -> None:
        """Say that these files next to the class folders are left out: sorting them in may have been interrupted."""
        if names:
            first = name_text(names[0])
            self._strays = [f"{self.top}: {len(names)} files beside the class folders are left out (first {first})"]

    def set_classes(self, order: ClassOrder) -> None:
        """Let its classes be these."""
        self._names, self._words, self._doubts = order.names, order.words, order.doubts

    @property
    def keeps_order(self) -> bool:
        """Whether this is the val split, whose rows follow the source's order unless a seed is given."""
        return self.split == "val"

    @property
    def found(self) -> str:
        """What was recognised at SRC, in a phrase for people."""
        labels = f", labels from {self.labels.origin}" if self.is_flat else ""
        return f"{self.form}{labels}, {counted(len(self._names), 'class', 'classes')}"

    def doubts(self, samples: int) -> list[str]:
        """What is wrong or missing though a build is possible, a sentence each; `samples` is what entries() gave."""
        doubts, whole = [*self._doubts, *self._strays], WHOLE[self.split]
        wnids = sum(1 for name in self._names if _WNID.fullmatch(name))
        if wnids >= MANY_CLASSES and samples != whole:
            doubts.append(f"{samples:,} of {whole:,} pictures of ILSVRC2012's {self.split}: half a dataset?")
        return doubts

    def facts(self) -> dict[str, Any]:
        """What `open_source` needs, beside kind and root, to make this source again."""
        return {"split": self.split, "classes": self._names, "words": self._words}

    def classes(self) -> tuple[ImageClass, ...]:
        """The classes in label order."""
        return tuple(ImageClass(name, self._words.get(name, "")) for name in self._names)
