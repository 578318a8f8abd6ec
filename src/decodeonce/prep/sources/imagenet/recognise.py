"""Detect the form of ImageNet at SRC, and open one split of it."""

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
from decodeonce.prep.sources.files import mode_of
from decodeonce.prep.sources.folder import class_folders
from decodeonce.prep.sources.formats.tar import list_tar
from decodeonce.prep.sources.holders import open_holder, source_file
from decodeonce.prep.sources.imagenet.forms import (
    ImagenetFlatSource,
    ImagenetSource,
    ImagenetTarSource,
    ImagenetZipSource,
    zip_listing,
)
from decodeonce.prep.sources.imagenet.labels import VAL_PREFIX, find_synsets
from decodeonce.prep.sources.imagenet.split import SPLITS, AnySplit, ImagenetSplit, class_order
from decodeonce.prep.sources.safe_open import Links

# The folders that hold train and val in Kaggle's layout, or in parts of it.
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
        AnySplit, "Read this split. auto: train if SRC has it, otherwise val, otherwise SRC itself."
    ] = "auto",
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ImagenetSplit:
    """Read ImageNet in any form. SRC is a tree, the tars as downloaded, or Kaggle's layout or zip.

    Archives are read without unpacking. Labels follow the sorted classes of train, also for val, as in torchvision.
    Labels of val images in one folder come from LOC_val_solution.csv or the development kit.

    Args:
        src: The folder that holds the dataset or one split of it, or an archive.
        split: "train", "val" or "auto" (default): train if `src` has it, otherwise val, otherwise `src` itself, as
            train, or as val if its name is "val" or "validation" or it holds val images.
        classes: Class names (wnids) in label order; default None: see above.
        follow_links: Whether links may lead out of `src`; default False.

    Returns:
        The source of the split, one of several classes for the different forms. Its `found` describes the form.

    Raises:
        BuildError: If no known form is found, val has no labels, or val has a class without a label.

    Example:
        >>> source = open_imagenet("/data/imagenet", split="val")
        >>> build(source, Path("val.store"), Recipe(height=224, width=224))
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
    """Find the split: unpacked, otherwise in an archive, otherwise SRC itself as its folder."""
    for one in SPLITS if split == "auto" else (split,):
        found = next(chain(_forms_in(root, one, links), _zips_in(root, one, links)), None)
        if found is not None:
            return found
        if (root / one).is_dir():  # an empty folder: make_plan reports it
            return ImagenetSource(root, split=one, folder=one, follow_links=links.follow)
    own = "val" if os.path.basename(os.path.realpath(root)) in VAL_NAMES else "train"
    form = next(_forms_of(root, "", own, links), None)
    if form is None or split not in ("auto", form.split):
        raise BuildError(_unrecognised(root, split))
    return form


def _train_classes(root: Path, val: ImagenetSplit, links: Links) -> list[str] | None:
    """Return the classes of the train split in SRC or next to it; None without one."""
    train = next(chain(_forms_in(root, "train", links), _zips_in(root, "train", links)), None)
    if train is None and val.top == root:
        home = root.absolute().parent
        train = next(_forms_in(home, "train", Links(home, follow=links.follow)), None)
    return None if train is None else train.present_classes()


def _forms_in(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """Yield the forms of a split in a folder or a tar, unpacked ones first, without zips."""
    if os.path.isfile(root):
        yield from _in_tar(root, split)
        return
    for base in BASES:
        yield from _forms_of(root, os.path.join(base, split), split, links)
    for suffix in ("", ".gz"):  # listing a compressed tar fails with advice
        name = TAR.format(split=split) + suffix
        if (root / name).is_file():
            yield ImagenetTarSource(root, split=split, files=[source_file(root, name, links)])


def _in_tar(root: Path, split: str) -> Iterator[ImagenetSplit]:
    file = source_file(root, "")
    with open_holder(root) as holder:
        if holder.read_at(0, 2) == b"PK":
            return
        first = next(list_tar(holder), None)
    own = "train" if first is not None and first.name.endswith(b".tar") else "val"
    if split == own:
        yield ImagenetTarSource(root, split=own, files=[file])


def _zips_in(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """Yield the split in a zip: `root` itself or a file in it. Listing a zip can take long."""
    if os.path.isfile(root):
        with open_holder(root) as holder:
            files = [source_file(root, "")] if holder.read_at(0, 2) == b"PK" else []
    else:
        names = sorted(path.name for path in root.glob("*.zip") if path.is_file())
        files = [source_file(root, name, links) for name in names]
    zips = [(file, listing) for file in files if (listing := zip_listing(root, file)).splits]
    if len(zips) > 1:
        raise BuildError(f"{zips[0][1].path}, {zips[1][1].path}: both contain ImageNet; pass one of them as SRC")
    for file, listing in zips:
        if split in listing.splits:
            yield ImagenetZipSource(root, split=split, files=[file])


def _forms_of(root: Path, folder: str, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """Yield the form of a folder: class folders, val images or class tars."""
    top = root / folder if folder else root
    if not stat.S_ISDIR(mode_of(os.fsencode(top))):
        return
    classes = class_folders(top)
    names = sorted(name_text(name) for name in os.listdir(os.fsencode(top)))
    images = [name for name in names if name.startswith(VAL_PREFIX)]
    tars = [name for name in names if name.endswith(".tar") and not name.startswith((".", "ILSVRC2012_"))]
    if images and classes:
        raise BuildError(
            f"{top}: {len(images)} val images (first {images[0]}) are next to {len(classes)} folders; if sorting them "
            "into class folders was interrupted, finish it, or unpack again"
        )
    if classes:
        _refuse_half_unpacked(top, names, classes)
        yield ImagenetSource(root, split=split, folder=folder, follow_links=links.follow)
    elif images:
        yield ImagenetFlatSource(root, split="val", folder=folder, follow_links=links.follow)
    elif split == "train" and tars:
        files = [source_file(root, os.path.join(folder, name), links) for name in tars]
        yield ImagenetTarSource(root, split=split, files=files, apart=True)


def _refuse_half_unpacked(top: Path, names: list[str], classes: list[str]) -> None:
    """Raise BuildError if some class tars have no class folder next to the others: their classes would be missing."""
    packed = [match[1] for name in names if (match := _CLASS_TAR.fullmatch(name)) and match[1] not in classes]
    if packed:
        raise BuildError(
            f"{top}: {len(packed)} class tars without a folder (first {packed[0]}.tar) are next to {len(classes)} "
            "class folders; if unpacking was interrupted, finish it; otherwise move the tars away"
        )


def _unrecognised(root: Path, split: str) -> str:
    try:
        os.stat(root)
    except OSError as error:
        raise_file_system_failure(error, root)
        return f"{root}: {error.strerror}; expected a folder with {KNOWN}; or one of these archives"
    what = "no known form of ImageNet" if split == "auto" else f"no {split} split of ImageNet"
    return f"{root}: {what} found; expected {KNOWN}; or another --split"
