"""Files that come with ImageNet's images: class names and descriptions, labels of val, and the development kit."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from decodeonce.errors import BuildError
from decodeonce.prep.listing import Entry, name_bytes
from decodeonce.prep.sources.archives import list_tar
from decodeonce.prep.sources.files import MAX_TEXT_BYTES, expecting, is_file, is_folder, stem_of
from decodeonce.prep.sources.holders import GZIP_MAGIC, GzipStream, open_holder
from decodeonce.store.class_words import ilsvrc2012
from decodeonce.store.hashing import hexdigest

MAPPING = "LOC_synset_mapping.txt"
SOLUTION = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12"
DEVKIT_TAR = f"{DEVKIT}.tar.gz"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
# Paths of the ground truth, or of the kit's tar, in a folder that holds the development kit.
DEVKITS = (f"{DEVKIT}/data/{TRUTH}", f"data/{TRUTH}", TRUTH, DEVKIT_TAR)
ADVICE = "make it readable, or remove it"
PARENTS = 4  # Kaggle's lists are four folders above ILSVRC/Data/CLS-LOC/val
VAL_PREFIX = "ILSVRC2012_val_"
NAMED = re.compile(rb"(?:.*_)?(n\d{8})(?:_\d+)?")  # n01440764_10026, or with "_n01440764" appended at Hugging Face


class Companion(NamedTuple):
    """A companion file: its name for messages, its path and its content."""

    origin: str
    path: str
    data: bytes


class ValLabels(NamedTuple):
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
        labeled, others = [], []
        for entry in entries:
            wnid = self.wnids.get(stem_of(entry.name))
            if wnid is None:
                others.append(replace(entry, problem=entry.problem or f"no label in {self.origin}"))
            else:
                labeled.append(replace(entry, label=numbers[wnid]))
        labeled.sort(key=lambda entry: (entry.label, os.path.basename(entry.name)))
        return [*labeled, *sorted(others, key=lambda entry: entry.name)]


class CompanionFiles:
    """The companion files in a folder and the four folders above it.

    Args:
        top: The listed folder, or the archive, whose folder is then searched.
        inside: Returns the content of a file in the archive by its name, or None; it is asked first. Default None.
    """

    def __init__(self, top: Path, inside: Callable[[str], bytes | None] | None = None) -> None:
        self._top = top
        self._inside = inside
        absolute = top.absolute()
        self.folders = [folder for folder in (absolute, *absolute.parents[:PARENTS]) if is_folder(folder)]

    def synsets(self) -> tuple[str, dict[str, str]]:
        """Return the name of the nearest list of classes, "" for none, and its description of each wnid.

        It is LOC_synset_mapping.txt, otherwise ILSVRC2012 if the development kit is present. Raise BuildError if it
        cannot be read.
        """
        mapping = self.find(MAPPING)
        if mapping is None:
            return ("ILSVRC2012", ilsvrc2012()) if self._nearest(DEVKITS) else ("", {})
        pairs = (line.split(maxsplit=1) for line in mapping.data.decode("utf-8-sig", "replace").splitlines())
        return mapping.origin, {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}

    def val_labels(self) -> ValLabels:
        """Return the labels of Kaggle's list, otherwise of the development kit; raise BuildError without both."""
        if (solution := self.find(SOLUTION)) is not None:
            return _parse_solution(solution)
        if (truth := self.truth()) is not None:
            return _parse_truth(truth)
        more = "; if the folders in it are classes, unpack it, and run `prep build folder`" if self._inside else ""
        raise BuildError(
            f"{self.folders[0]}: images in one folder have no labels; put {SOLUTION}, {TRUTH} or {DEVKIT_TAR} "
            f"next to them; looked in {', '.join(map(str, self.folders))}{more}"
        )

    def find(self, name: str) -> Companion | None:
        """Return the nearest file with this name."""
        if self._inside is not None and (data := self._inside(name)) is not None:
            return Companion(name, f"{self._top}: {name}", data)
        path = self._nearest([name])
        return None if path is None else Companion(name, str(path), _content(path))

    def truth(self) -> Companion | None:
        """Return the ground truth of the nearest development kit; raise BuildError if it cannot be read."""
        path = self._nearest(DEVKITS)
        if path is None:
            return None
        if path.name == DEVKIT_TAR:
            return Companion(DEVKIT_TAR, f"{path}: {TRUTH}", _truth_in_tar(path))
        return Companion(DEVKIT if DEVKIT in str(path) else TRUTH, str(path), _content(path))

    def _nearest(self, names: Sequence[str]) -> Path | None:
        return next((path for folder in self.folders for name in names if is_file(path := folder / name)), None)


def _content(path: Path) -> bytes:
    with expecting(path, ADVICE), open_holder(path) as file:
        if file.size > MAX_TEXT_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_TEXT_BYTES} bytes")
        return file.read_at(0, file.size)


def _truth_in_tar(path: Path) -> bytes:
    with expecting(path, ADVICE), open_holder(path) as file:
        # Some browsers have already unpacked the file.
        tar = GzipStream(file, BuildError) if file.read_at(0, len(GZIP_MAGIC)) == GZIP_MAGIC else file
        for member in list_tar(tar):
            if member.base_name == TRUTH.encode() and member.size <= MAX_TEXT_BYTES and not member.problem:
                return tar.read_at(member.place, member.size)
    raise BuildError(f"{path}: contains no {TRUTH}; download the development kit again")


def _parse_solution(file: Companion) -> ValLabels:
    """Parse lines like `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: groups of a wnid and a box."""
    wnids: dict[bytes, str] = {}
    for number, line in enumerate(file.data.decode("utf-8-sig", "replace").splitlines(), 1):
        name, _, groups = line.replace('"', "").partition(",")
        if not line.strip() or name == "ImageId":
            continue
        if not groups.split():
            raise BuildError(f"{file.path}: line {number}: expected an image name, a comma, a wnid and a box")
        wnid = groups.split()[0]
        if (before := wnids.setdefault(name.strip().encode(), wnid)) != wnid:
            raise BuildError(f"{file.path}: line {number}: {name} is {wnid}, but {before} before; download it again")
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
