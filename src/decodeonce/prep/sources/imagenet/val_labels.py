"""The labels of ILSVRC2012's val images in one folder: from Kaggle's list or the development kit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Entry, name_bytes
from decodeonce.prep.sources.base import stem_of
from decodeonce.prep.sources.imagenet.companions import DEVKIT_TAR, SOLUTION, TRUTH, Companion, CompanionFiles
from decodeonce.store.class_words import ilsvrc2012
from decodeonce.store.hashing import hexdigest

VAL_PREFIX = "ILSVRC2012_val_"


@dataclass(frozen=True)
class ValLabels:
    """The wnid of each image, by its name without suffix. `origin` is the name of the file with the labels."""

    origin: str
    wnids: dict[bytes, str]

    @property
    def classes(self) -> list[str]:
        """The wnids, sorted by their bytes."""
        return sorted(set(self.wnids.values()), key=name_bytes)

    @property
    def digest(self) -> str:
        """A digest of all labels."""
        return hexdigest(repr(sorted(self.wnids.items())).encode())

    def sort(self, entries: Iterable[Entry], names: list[str]) -> list[Entry]:
        """Return the entries with their labels, sorted by label and name. Those without one come last, as problems."""
        numbers = {name: number for number, name in enumerate(names)}
        labelled, others = [], []
        for entry in entries:
            wnid = self.wnids.get(stem_of(entry.name))
            if wnid is None:
                others.append(replace(entry, problem=entry.problem or f"no label in {self.origin}"))
            else:
                labelled.append(replace(entry, label=numbers[wnid]))
        return [
            *sorted(labelled, key=lambda entry: (entry.label, os.path.basename(entry.name))),
            *sorted(others, key=lambda entry: entry.name),
        ]


def find_val_labels(companions: CompanionFiles) -> ValLabels:
    """Return the labels of Kaggle's list, otherwise of the development kit; raise BuildError if neither is found."""
    if (solution := companions.find(SOLUTION)) is not None:
        return _parse_solution(solution)
    if (truth := companions.truth()) is not None:
        return _parse_truth(truth)
    raise BuildError(
        f"{companions.folders[0]}: val images in one folder have no labels; put {SOLUTION}, {TRUTH} or {DEVKIT_TAR} "
        f"next to them; looked in {', '.join(map(str, companions.folders))}"
    )


def _parse_solution(file: Companion) -> ValLabels:
    """Parse lines like `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: groups of a wnid and a box."""
    wnids: dict[bytes, str] = {}
    for number, line in enumerate(file.data.decode("utf-8-sig", "replace").splitlines(), 1):
        name, _, groups = line.replace('"', "").partition(",")
        if not line.strip() or name == "ImageId":
            continue
        if not groups.split():
            raise BuildError(f"{file.path}: line {number}: expected an image name, a comma, a wnid and a box")
        wnids[name.strip().encode()] = groups.split()[0]
    return ValLabels(file.origin, wnids)


def _parse_truth(file: Companion) -> ValLabels:
    """Parse the ground truth: line i has the ILSVRC2012_ID of image i, an index into the table, not sorted wnids."""
    numbers = {str(number): wnid for number, wnid in enumerate(ilsvrc2012(), 1)}
    wnids = {}
    for number, line in enumerate(file.data.decode("utf-8", "replace").splitlines(), 1):
        if line.strip() not in numbers:
            raise BuildError(f"{file.path}: line {number}: expected an ILSVRC2012_ID, 1 to {len(numbers)}")
        wnids[f"{VAL_PREFIX}{number:08d}".encode()] = numbers[line.strip()]
    return ValLabels(file.origin, wnids)
