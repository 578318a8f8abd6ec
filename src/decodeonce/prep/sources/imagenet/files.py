"""ImageNet's images as files: class folders, SRC/train/<wnid>/*.JPEG, or val images in one folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decodeonce.prep.entry import Entry, name_bytes
from decodeonce.prep.sources.base import read_file
from decodeonce.prep.sources.folder import (
    SUFFIXES,
    check_classes,
    class_folders,
    list_folders,
)
from decodeonce.prep.sources.imagenet.split import ImagenetSplit
from decodeonce.prep.sources.links import Links
from decodeonce.prep.sources.parallel_stat import stat_entries


class ImagenetFiles(ImagenetSplit):
    """A split whose images are files below `folder` of SRC."""

    def __init__(self, root: Path, *, folder: str = "", follow_links: bool = False, **facts: Any) -> None:
        super().__init__(root, **facts)
        self.folder = folder
        self._links = Links(root, follow=follow_links)

    @property
    def top(self) -> Path:
        return self.root / self.folder if self.folder else self.root

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "folder": self.folder, "follow_links": self._links.follow}

    def read(self, entry: Entry) -> bytes:
        return read_file(self.root, entry, self._links)


class ImagenetSource(ImagenetFiles):
    """A split of ImageNet in class folders, listed like a `FolderSource`. Made by `open_imagenet`."""

    kind = "imagenet"

    @property
    def form(self) -> str:
        return f"class folders in {self.folder or self.top}"

    def present_classes(self) -> list[str]:
        return class_folders(self.top)

    def entries(self) -> Iterator[Entry]:
        """Yield every image, by class in label order, then by name."""
        check_classes(self.top, self._names, self.present_classes())
        with os.scandir(os.fsencode(self.top)) as listing:
            strays = [item.name for item in listing if is_image_name(item.name) or item.name.endswith(b".tar")]
        self.note_stray_files(sorted(strays))
        return list_folders(self.root, self.folder, self._names, self._links)


class ImagenetFlatSource(ImagenetFiles):
    """Val images in one folder, with labels from Kaggle's list or the development kit."""

    kind = "imagenet-flat"
    is_flat = True

    @property
    def form(self) -> str:
        return f"images in {self.folder or self.top}"

    def present_classes(self) -> list[str]:
        return self.labels.classes

    def entries(self) -> Iterator[Entry]:
        """Yield every image, by class in label order, then by name."""
        with os.scandir(os.fsencode(self.top)) as listing:
            names = sorted(item.name for item in listing if is_image_name(item.name))
        paths = [os.path.join(name_bytes(self.folder), name) for name in names]
        found = stat_entries(self.root, (Entry(path, 0, 0, 0) for path in paths), self._links)
        return iter(self.labels.sort(found, self._names))


def is_image_name(name: bytes) -> bool:
    """Return whether a file name has the suffix of an image and is not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(b".")
