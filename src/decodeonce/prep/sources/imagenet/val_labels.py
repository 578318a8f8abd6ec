"""The labels of ILSVRC2012's val pictures, which lie in one folder: from Kaggle's list, or from the development kit."""

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
    """A wnid for each picture, by its name without suffix; `origin` is the file that says so."""

    origin: str
    wnids: dict[bytes, str]

    @property
    def classes(self) -> list[str]:
        """The wnids, sorted by their bytes."""
        return sorted(set(self.wnids.values()), key=name_bytes)

    @property
    def digest(self) -> str:
        """Another wherever any picture's label is."""
        return hexdigest(repr(sorted(self.wnids.items())).encode())

    def sort(self, entries: Iterable[Entry], names: list[str]) -> list[Entry]:
        """Entries with their labels, by label, then by name; those without are problems and come last."""
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
    """What Kaggle's list says, else the development kit; BuildError where neither is there."""
    if (solution := companions.find(SOLUTION)) is not None:
        return _parse_solution(solution)
    if (truth := companions.truth()) is not None:
        return _parse_truth(truth)
    raise BuildError(
        f"{companions.folders[0]}: val images in one folder have no labels; put {SOLUTION}, {TRUTH} or {DEVKIT_TAR} "
        f"next to them; looked in {', '.join(map(str, companions.folders))}"
    )


def _parse_solution(file: Companion) -> ValLabels:
    """Lines like `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: a wnid and a box, or several such groups."""
    wnids: dict[bytes, str] = {}
    for number, line in enumerate(file.data.decode("utf-8-sig", "replace").splitlines(), 1):
        name, _, groups = line.replace('"', "").partition(",")
        if not line.strip() or name == "ImageId":
            continue
        if not groups.split():
            raise BuildError(f"{file.path}: line {number}: expected picture,wnid and a box")
        wnids[name.strip().encode()] = groups.split()[0]
    return ValLabels(file.origin, wnids)


def _parse_truth(file: Companion) -> ValLabels:
    """Line i is the ILSVRC2012_ID of picture i, which is the place in the table, not among the sorted wnids."""
    numbers = {str(number): wnid for number, wnid in enumerate(ilsvrc2012(), 1)}
    wnids = {}
    for number, line in enumerate(file.data.decode("utf-8", "replace").splitlines(), 1):
        if line.strip() not in numbers:
            raise BuildError(f"{file.path}: line {number}: expected an ILSVRC2012_ID, 1 to {len(numbers)}")
        wnids[f"{VAL_PREFIX}{number:08d}".encode()] = numbers[line.strip()]
    return ValLabels(file.origin, wnids)
