"""Which forms of ImageNet lie in a folder."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.entry import name_text
from decodeonce.prep.sources.base import mode_of
from decodeonce.prep.sources.files import source_file
from decodeonce.prep.sources.folder import class_folders
from decodeonce.prep.sources.imagenet.archive import ImagenetTarSource
from decodeonce.prep.sources.imagenet.files import ImagenetFlatSource, ImagenetSource
from decodeonce.prep.sources.imagenet.split import ImagenetSplit
from decodeonce.prep.sources.imagenet.val_labels import PICTURE_ID
from decodeonce.prep.sources.links import Links

# Where train and val lie in what Kaggle gives, and in what people make of it.
BASES = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")
TAR = "ILSVRC2012_img_{split}.tar"
_CLASS_TAR = re.compile(r"(n\d{8})\.tar")


def forms_in(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """The forms of a split that lie in a folder, unpacked ones first; zips aside, which take long to look into."""
    for base in BASES:
        yield from forms_of(root, os.path.join(base, split), split, links)
    for suffix in ("", ".gz"):  # a compressed one is refused when it is listed, with a word on what to do
        name = TAR.format(split=split) + suffix
        if (root / name).is_file():
            yield ImagenetTarSource(root, split=split, files=[source_file(root, name, links)])


def forms_of(root: Path, folder: str, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """A folder as class folders, as val pictures, or as class tars."""
    top = root / folder if folder else root
    if not stat.S_ISDIR(mode_of(os.fsencode(top))):
        return
    classes = class_folders(top)
    names = sorted(name_text(name) for name in os.listdir(os.fsencode(top)))
    pictures = [name for name in names if name.startswith(PICTURE_ID)]
    if pictures and classes:
        raise BuildError(
            f"{top}: {len(pictures)} val pictures (first {pictures[0]}) beside {len(classes)} folders: was sorting "
            "them into class folders interrupted? finish that, or unpack again"
        )
    if classes:
        _refuse_half_unpacked(top, names, classes)
        yield ImagenetSource(root, split=split, folder=folder, follow_links=links.follow)
    elif pictures:
        yield ImagenetFlatSource(root, split="val", folder=folder, follow_links=links.follow)
    elif split == "train" and (
        tars := [name for name in names if name.endswith(".tar") and not name.startswith((".", "ILSVRC2012_"))]
    ):
        files = [source_file(root, os.path.join(folder, name), links) for name in tars]
        yield ImagenetTarSource(root, split=split, files=files, apart=True)


def _refuse_half_unpacked(top: Path, names: list[str], classes: list[str]) -> None:
    """BuildError where class tars lie beside class folders and have none: their classes would be left out."""
    packed = [match[1] for name in names if (match := _CLASS_TAR.fullmatch(name)) and match[1] not in classes]
    if packed:
        raise BuildError(
            f"{top}: {len(packed)} class tars without a folder (first {packed[0]}.tar) beside {len(classes)} class "
            "folders: was unpacking interrupted? finish that, or move the tars away"
        )
