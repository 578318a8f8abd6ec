"""The base of all forms of a split of ImageNet: its classes, their label order, and its warnings."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.prep.entry import name_bytes, name_text
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.folder import check_classes
from decodeonce.prep.sources.imagenet.labels import CompanionFiles, Synsets, ValLabels, find_val_labels
from decodeonce.store.manifest import ImageClass

Split = Literal["train", "val"]
AnySplit = Literal[Split, "auto"]
SPLITS: tuple[Split, ...] = get_args(Split)
WHOLE = {"train": 1_281_167, "val": 50_000}  # images of ILSVRC2012
MANY_CLASSES = 900  # with fewer classes it is a chosen subset, and no warning about missing images is given
_WNID = re.compile(r"n\d{8}")
ADVICE = "pass --classes FILE to define the label order"


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

    def options(self) -> dict[str, Any]:
        return {"split": self.split}

    def facts(self) -> dict[str, Any]:
        return {"split": self.split, "classes": self._names, "words": self._words}

    def classes(self) -> tuple[ImageClass, ...]:
        return tuple(ImageClass(name, self._words.get(name, "")) for name in self._names)


@dataclass(frozen=True)
class ClassOrder:
    """The classes in label order, their descriptions by name, and warnings, one sentence each."""

    names: list[str]
    words: dict[str, str]
    warnings: list[str]


def class_order(
    top: Path,
    present: Sequence[str],
    *,
    train: Sequence[str] | None = None,
    listed: Synsets | None = None,
    given: Sequence[str] | None = None,
    is_val: bool = False,
) -> ClassOrder:
    """Return the classes of a split in label order.

    The order is the first of these that is available: `given`; for val, the classes of train, sorted as in torchvision;
    for val, the classes of the list, sorted; the classes that are present, sorted.

    Args:
        top: The split, for messages.
        present: The classes that its images have, sorted.
        train: The classes of train, sorted, or None.
        listed: A list of all classes, or None.
        given: Class names in label order from the user, or None.
        is_val: Whether this is the val split.

    Raises:
        BuildError: If the split has a class without a label, or `given` is invalid.
    """
    names, owner, where = present, "", "present"
    if given is not None:
        names = given
    elif is_val and train is not None:
        names, owner, where = train, "train", "in train"
    elif is_val and listed is not None:
        names, owner = sorted(listed.words, key=name_bytes), listed.origin
    check_classes(top, names, present if given is not None else [])
    if unknown := _not_in(names, present):
        more = ", ..." if len(unknown) > 3 else ""
        raise BuildError(
            f"{top}: val has {len(unknown)} classes that {owner} lacks ({', '.join(unknown[:3])}{more}); {ADVICE}"
        )
    warnings = []
    missing = _not_in(present, names)
    if owner == "train" and missing:
        warnings.append(
            f"val has {len(names) - len(missing)} of the {len(names)} classes of train (first missing {missing[0]})"
        )
    if given is None and listed is not None:
        known = names if owner == "train" else present
        follow = owner if owner == listed.origin else f"the {len(known)} classes {where}; {ADVICE}"
        warnings += _compare(known, where, listed, follow)
    words = {} if listed is None else {name: listed.words[name] for name in names if name in listed.words}
    return ClassOrder(list(names), words, warnings)


def _compare(known: Sequence[str], where: str, listed: Synsets, follow: str) -> list[str]:
    """Return a warning if the classes and the list differ: labels then are not those of the whole dataset."""
    if unknown := _not_in(listed.words, known):
        what = f"{len(unknown)} classes {where} are not in {listed.origin} (first {unknown[0]})"
    elif missing := _not_in(known, sorted(listed.words, key=name_bytes)):
        total = len(listed.words)
        what = f"{len(known)} of {total} classes of {listed.origin} are {where} (first missing {missing[0]})"
    else:
        return []
    return [f"{what}; labels follow {follow}"]


def _not_in(known: Iterable[str], names: Iterable[str]) -> list[str]:
    known = set(known)
    return [name for name in names if name not in known]
