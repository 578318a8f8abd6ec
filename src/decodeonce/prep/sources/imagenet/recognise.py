"""From SRC to the source of one split of ImageNet, whatever its form."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

from decodeonce.errors import BuildError, raise_file_system_failure
from decodeonce.prep.entry import name_text
from decodeonce.prep.sources.base import mode_of
from decodeonce.prep.sources.files import source_file
from decodeonce.prep.sources.folder import class_folders
from decodeonce.prep.sources.formats.tar import Window, list_tar
from decodeonce.prep.sources.imagenet.archive import ImagenetTarSource
from decodeonce.prep.sources.imagenet.class_order import class_order
from decodeonce.prep.sources.imagenet.files import ImagenetFlatSource, ImagenetSource
from decodeonce.prep.sources.imagenet.kaggle import ImagenetZipSource, zip_listing
from decodeonce.prep.sources.imagenet.split import SPLITS, AnySplit, ImagenetSplit
from decodeonce.prep.sources.imagenet.synsets import find_synsets
from decodeonce.prep.sources.imagenet.val_labels import VAL_PREFIX
from decodeonce.prep.sources.links import Links
from decodeonce.prep.sources.safe_open import open_regular

# Where train and val lie in what Kaggle gives, and in what people make of it.
BASES = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")
TAR = "ILSVRC2012_img_{split}.tar"
VAL_NAMES = ("val", "validation")
KNOWN = (
    "train/<wnid>/*.JPEG, val in the same layout or in one folder, Kaggle's ILSVRC/Data/CLS-LOC or its zip, "
    f"{TAR.format(split='train')}, {TAR.format(split='val')}, or a folder of classes"
)
_CLASS_TAR = re.compile(r"(n\d{8})\.tar")


def open_imagenet(
    src: str | Path,
    *,
    split: Annotated[
        AnySplit, "Split to read. auto: train if SRC has it, else val, else SRC itself as one of them."
    ] = "auto",
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ImagenetSplit:
    """Read ImageNet in any form. SRC is a tree, the tars as downloaded, or Kaggle's layout or zip.

    Labels follow the sorted classes of train, for val, too; `classes` fixes another order. Raises BuildError where
    nothing is recognised, labels of val are nowhere, or val has a class that would get none.
    """
    root = Path(src)
    links = Links(root, follow=follow_links)
    source = _find(root, split, links)
    present, is_val = source.present_classes(), source.split == "val"
    train = _train_classes(root, source, links) if is_val and classes is None else None
    listed = find_synsets(source.companions)
    source.set_classes(class_order(source.top, present, train=train, listed=listed, given=classes, is_val=is_val))
    return source


def _find(root: Path, split: str, links: Links) -> ImagenetSplit:
    """The unpacked form of the split, else an archive, else SRC itself as the folder of the split."""
    for one in SPLITS if split == "auto" else (split,):
        found = next(chain(_forms_in(root, one, links), _zips_in(root, one, links)), None)
        if found is not None:
            return found
        if (root / one).is_dir():  # empty: make_plan will say so
            return ImagenetSource(root, split=one, folder=one, follow_links=links.follow)
    own = "val" if os.path.basename(os.path.realpath(root)) in VAL_NAMES else "train"
    form = next(_forms_of(root, "", own, links), None)
    if form is None or split not in ("auto", form.split):
        raise BuildError(_unrecognised(root, split))
    return form


def _train_classes(root: Path, val: ImagenetSplit, links: Links) -> list[str] | None:
    """The classes of the train split that lies where this val split does: in SRC, or next to it."""
    train = next(chain(_forms_in(root, "train", links), _zips_in(root, "train", links)), None)
    if train is None and val.top == root:
        home = root.absolute().parent
        train = next(_forms_in(home, "train", Links(home, follow=links.follow)), None)
    return None if train is None else train.present_classes()


def _forms_in(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """The forms of a split in a folder, or that a tar is, unpacked ones first; without zips."""
    if os.path.isfile(root):
        yield from _in_tar(root, split)
        return
    for base in BASES:
        yield from _forms_of(root, os.path.join(base, split), split, links)
    for suffix in ("", ".gz"):  # a compressed one is refused when it is listed, with a word on what to do
        name = TAR.format(split=split) + suffix
        if (root / name).is_file():
            yield ImagenetTarSource(root, split=split, files=[source_file(root, name, links)])


def _in_tar(root: Path, split: str) -> Iterator[ImagenetSplit]:
    file = source_file(root, "")
    with open(open_regular(root), "rb") as opened:
        if opened.read(2) == b"PK":
            return
        first = next(list_tar(Window(opened.fileno(), str(root), 0, file.size)), None)
    own = "train" if first is not None and first.name.endswith(b".tar") else "val"
    if split == own:
        yield ImagenetTarSource(root, split=own, files=[file])


def _zips_in(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """A split in the zip that root is, or that lies in it; looking into one may take long."""
    if os.path.isfile(root):
        with open(open_regular(root), "rb") as opened:
            files = [source_file(root, "")] if opened.read(2) == b"PK" else []
    else:
        names = sorted(path.name for path in root.glob("*.zip") if path.is_file())
        files = [source_file(root, name, links) for name in names]
    zips = [(file, listing) for file in files if (listing := zip_listing(root, file)).splits]
    if len(zips) > 1:
        raise BuildError(f"{zips[0][1].path}, {zips[1][1].path}: both hold ImageNet; point SRC at one of them")
    for file, listing in zips:
        if split in listing.splits:
            yield ImagenetZipSource(root, split=split, files=[file])


def _forms_of(root: Path, folder: str, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """A folder as class folders, as val pictures, or as class tars."""
    top = root / folder if folder else root
    if not stat.S_ISDIR(mode_of(os.fsencode(top))):
        return
    classes = class_folders(top)
    names = sorted(name_text(name) for name in os.listdir(os.fsencode(top)))
    pictures = [name for name in names if name.startswith(VAL_PREFIX)]
    tars = [name for name in names if name.endswith(".tar") and not name.startswith((".", "ILSVRC2012_"))]
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
    elif split == "train" and tars:
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


def _unrecognised(root: Path, split: str) -> str:
    try:
        os.stat(root)
    except OSError as error:
        raise_file_system_failure(error, root)
        return f"{root}: {error.strerror}; expected a folder with {KNOWN}; or one of these archives itself"
    what = "no ImageNet" if split == "auto" else f"no {split} split of ImageNet"
    return f"{root}: {what} recognised in it; expected {KNOWN}; or another --split"
