"""Files that come with ImageNet's images: lists of labels and names, and the development kit."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from decodeonce.errors import BuildError
from decodeonce.prep.sources.formats.gzipped import MAGIC, GzipStream
from decodeonce.prep.sources.formats.tar import Window, list_tar
from decodeonce.prep.sources.safe_open import MAX_TEXT_BYTES, expecting, open_regular, read_small

MAPPING = "LOC_synset_mapping.txt"
SOLUTION = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12"
DEVKIT_TAR = f"{DEVKIT}.tar.gz"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
# Paths of the ground truth in a folder that holds the development kit.
DEVKITS = (f"{DEVKIT}/data/{TRUTH}", f"data/{TRUTH}", TRUTH, DEVKIT_TAR)
ADVICE = "make it readable, or remove it"
PARENTS = 4  # Kaggle's lists are four folders above ILSVRC/Data/CLS-LOC/val


@dataclass(frozen=True)
class Companion:
    """A companion file: its name for messages, its path and its content."""

    origin: str
    path: str
    data: bytes


class CompanionFiles:
    """Finds companion files in a folder and the four folders above it.

    Args:
        top: The listed folder, or the archive, whose folder is then searched.
        inside: Returns the content of a file in the archive by its name, or None; it is asked first. Default None.
    """

    def __init__(self, top: Path, inside: Callable[[str], bytes | None] | None = None) -> None:
        self._top = top
        self._inside = inside
        absolute = top.absolute()
        self.folders = [folder for folder in (absolute, *absolute.parents[:PARENTS]) if os.path.isdir(folder)]

    def find(self, name: str) -> Companion | None:
        """Return the nearest file with this name."""
        if self._inside is not None and (data := self._inside(name)) is not None:
            return Companion(name, f"{self._top}: {name}", data)
        for folder in self.folders:
            if (data := _content(folder / name)) is not None:
                return Companion(name, str(folder / name), data)
        return None

    def devkit(self) -> Path | None:
        """Return the path of the ground truth in the nearest development kit, or of the kit's tar."""
        paths = (folder / place for folder in self.folders for place in DEVKITS)
        return next(filter(os.path.isfile, paths), None)

    def truth(self) -> Companion | None:
        """Return the ground truth of the nearest development kit; raise BuildError if it cannot be read."""
        path = self.devkit()
        if path is None:
            return None
        if path.name != DEVKIT_TAR:
            return Companion(DEVKIT if DEVKIT in str(path) else TRUTH, str(path), _content(path) or b"")
        return Companion(DEVKIT_TAR, f"{path}: {TRUTH}", _truth_in_tar(path))


def _content(path: Path) -> bytes | None:
    with expecting(path, ADVICE):
        return read_small(path) if os.path.isfile(path) else None


def _truth_in_tar(path: Path) -> bytes:
    with expecting(path, ADVICE), open(open_regular(path), "rb") as file, closing(_unpacked(file, path)) as tar:
        for member in list_tar(tar):
            if member.base_name == TRUTH.encode() and member.size <= MAX_TEXT_BYTES and not member.problem:
                return tar.read_at(member.place, member.size)
    raise BuildError(f"{path}: contains no {TRUTH}; download the development kit again")


def _unpacked(file: BinaryIO, path: Path) -> Window:
    """Open the tar in a tar.gz, unpacked as far as it is read. Some browsers have already unpacked the file."""
    if os.pread(file.fileno(), len(MAGIC), 0) == MAGIC:
        return GzipStream(file.fileno(), str(path), BuildError)
    return Window(file.fileno(), str(path), 0, os.fstat(file.fileno()).st_size)
