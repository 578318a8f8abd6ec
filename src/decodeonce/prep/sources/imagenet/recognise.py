"""From SRC to the source of one split of ImageNet, whatever its form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from decodeonce.errors import BuildError, raise_unless_its_own
from decodeonce.prep.sources.files import source_file
from decodeonce.prep.sources.formats.tar import Window, list_tar
from decodeonce.prep.sources.imagenet.archive import ImagenetTarSource
from decodeonce.prep.sources.imagenet.class_order import class_order
from decodeonce.prep.sources.imagenet.files import ImagenetSource
from decodeonce.prep.sources.imagenet.forms import TAR, forms_in, forms_of
from decodeonce.prep.sources.imagenet.kaggle import ImagenetZip, ImagenetZipSource
from decodeonce.prep.sources.imagenet.split import SPLITS, ImagenetSplit
from decodeonce.prep.sources.imagenet.synsets import find_synsets
from decodeonce.prep.sources.links import Links
from decodeonce.prep.sources.safe_open import open_regular

VAL_NAMES = ("val", "validation")
KNOWN = (
    "train/<wnid>/*.JPEG, val in the same layout or in one folder, Kaggle's ILSVRC/Data/CLS-LOC or its zip, "
    f"{TAR.format(split='train')}, {TAR.format(split='val')}, or a folder of classes"
)


def open_imagenet(
    root: Path, *, split: str = "auto", classes: Sequence[str] | None = None, follow_links: bool = False
) -> ImagenetSplit:
    """The source of one split, whatever its form; "auto" takes train, else val, else SRC itself as one of them.

    Labels follow the sorted classes of train, for val, too; `classes` fixes another order. Raises BuildError where
    nothing is recognised, labels of val are nowhere, or val has a class that would get none.
    """
    place = _Place(root, Links(root, follow=follow_links))
    source = place.find(split)
    present, is_val = source.present(), source.split == "val"
    train = place.train_classes(source) if is_val and classes is None else None
    listed = find_synsets(source.beside)
    source.settle(class_order(source.top, present, train=train, listed=listed, given=classes, is_val=is_val))
    return source


class _Place:
    """What lies at SRC: a folder or an archive."""

    def __init__(self, root: Path, links: Links) -> None:
        self._root = root
        self._links = links
        self._zip: ImagenetZip | None = None

    def find(self, split: str) -> ImagenetSplit:
        """The source of this split, an unpacked one first."""
        if os.path.isfile(self._root):
            return self._in_file(split)
        for one in SPLITS if split == "auto" else (split,):
            forms = [*forms_in(self._root, one, self._links)]
            if forms:
                forms[0].tell_others(forms[1:])
                return forms[0]
            if (zipped := self._zipped(one)) is not None:
                return zipped
            if (self._root / one).is_dir():  # empty: make_plan will say so
                return ImagenetSource(self._root, split=one, folder=one, follow_links=self._links.follow)
        own = "val" if os.path.basename(os.path.realpath(self._root)) in VAL_NAMES else "train"
        form = next(forms_of(self._root, "", own, self._links), None)
        if form is not None and split in ("auto", form.split):
            return form
        raise BuildError(_unrecognised(self._root, split))

    def train_classes(self, val: ImagenetSplit) -> list[str] | None:
        """The classes of the train split that lies where this val split does."""
        if isinstance(val, ImagenetZipSource):
            train: ImagenetSplit | None = self._zipped("train")
        else:
            home = self._root if os.path.isdir(self._root) and val.top != self._root else self._root.absolute().parent
            train = next(forms_in(home, "train", Links(home, follow=self._links.follow)), None)
            if train is None and home == self._root:
                train = self._zipped("train")
        return None if train is None else train.present()

    def _in_file(self, split: str) -> ImagenetSplit:
        file = source_file(self._root, "")
        with open(open_regular(self._root), "rb") as opened:
            if opened.read(2) == b"PK":
                for one in SPLITS if split == "auto" else (split,):
                    if (zipped := self._zipped(one)) is not None:
                        return zipped
                raise BuildError(f"{self._root}: no train or val of Kaggle's ILSVRC/Data/CLS-LOC in this zip")
            first = next(list_tar(Window(opened.fileno(), str(self._root), 0, file.size)), None)
        own = "train" if first is not None and first.name.endswith(b".tar") else "val"
        if split not in ("auto", own):
            raise BuildError(f"{self._root}: begins as the {own} split does, expected {split}; or another --split")
        return ImagenetTarSource(self._root, split=own, files=[file])

    def _zipped(self, split: str) -> ImagenetZipSource | None:
        self._zip = self._zip or self._find_zip()
        if self._zip is None or split not in self._zip.splits:
            return None
        return ImagenetZipSource(self._root, split=split, files=self._zip.files.files, listing=self._zip)

    def _find_zip(self) -> ImagenetZip | None:
        if os.path.isfile(self._root):
            return ImagenetZip(self._root, source_file(self._root, ""))
        names = sorted(path.name for path in self._root.glob("*.zip") if path.is_file())
        zips = [ImagenetZip(self._root, source_file(self._root, name, self._links)) for name in names]
        zips = [found for found in zips if found.splits]
        if len(zips) > 1:
            raise BuildError(f"{zips[0].path}, {zips[1].path}: both hold ImageNet; point SRC at one of them")
        return zips[0] if zips else None


def _unrecognised(root: Path, split: str) -> str:
    try:
        os.listdir(root)
    except OSError as error:
        raise_unless_its_own(error, root)
        return f"{root}: {error.strerror}; expected a folder with {KNOWN}; or one of these archives itself"
    if split == "auto":
        return f"{root}: no ImageNet recognised in it; expected {KNOWN}"
    return f"{root / split}: no such folder, and no archive of {split} in {root}; expected {KNOWN}; or another --split"
