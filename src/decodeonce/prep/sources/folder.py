"""Class folders, SRC/<class>/.../<file>: the layout of torchvision's ImageFolder."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.prep.listing import SEGMENTATION, Entry, Scan, name_bytes, name_text
from decodeonce.prep.sources.class_folders import (
    CSV,
    Top,
    check_no_splits,
    list_top,
    odd_files,
    odd_names,
    unlike_train,
)
from decodeonce.prep.sources.classes import alike_classes, check_classes, unused_classes
from decodeonce.prep.sources.files import EMPTY, SUFFIXES, Links, system_of
from decodeonce.prep.sources.labels import LabeledSource, NoLabels
from decodeonce.remote import source_path
from decodeonce.store.layout import Json

# Suffixes of images that are read, or that are rejected by name.
READ_SUFFIXES = frozenset((*SUFFIXES, b".jpe", b".jfif", b".apng", b".pnm", b".pfm"))
READ_SUFFIXES |= {b".heic", b".heif", b".jp2", b".jxl", b".psd", b".svg"}
# What follows the name of an image in that of its mask, such as "_mask_1", or nothing if only the suffixes differ.
OF_MASK = re.compile(
    rb"([ _.-](masks?|gt|seg|segmentation|labels?|labelids|annotations?|manual|depth)([ _.-]?\d+)?)?\Z", re.IGNORECASE
)


def is_image_name(name: bytes) -> bool:
    """Return whether a file name has the suffix of an image that can be read, and is not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(b".")


class FolderSource(LabeledSource):
    """A folder per class: SRC/<class>/.../<image>. With `no_labels`, any folder of images.

    Every file below a class folder with the suffix of an image is a sample, except hidden ones (".name"). Subfolders
    are included, down to 64 levels. A subfolder is rejected if its name ends like that of an image, such as "cat.jpg",
    or if it is a link that leads out of `root`, or to a folder that another link of the class leads to.

    Args:
        root: The folder that holds the class folders.
        classes: Folder names in label order. Default None: all class folders, sorted by their bytes.
        follow_links: Whether links may lead out of `root`. Default False: such a link is rejected.
        splits_as_classes: Whether folders named like splits, such as "train" and "val", may be classes although they
            contain folders. Default False: they raise BuildError. Has no effect with `classes`.
        suffix: Suffixes of other files to read as images, such as ".dat"; default None: none.
        no_labels: Whether all images below `root` are of one class; default False.

    Raises:
        BuildError: If `root` cannot be read, has no class folders or seems to contain splits, or there are both
            `classes` and `no_labels`. `scan` raises it if `classes` lacks a folder.

    Example:
        >>> source = FolderSource(Path("imagenet/val"))
        >>> build(source, Path("new.store"), Recipe(height=64, width=64)).count
        16
    """

    kind = "folder"
    links: Links
    _names: list[str]

    def __init__(
        self,
        root: Path,
        *,
        classes: Sequence[str] | None = None,
        follow_links: bool = False,
        splits_as_classes: bool = False,
        suffix: Sequence[str] | None = None,
        no_labels: bool = False,
    ) -> None:
        super().__init__(root, classes, None, no_labels=no_labels)
        self._by_suffix = BySuffix(suffix or ())
        self.links = Links(root, follow=follow_links)
        folders = self._listed.folders if classes is None else []
        self._names = self._names or folders
        self._is_guess = classes is None and not splits_as_classes and not no_labels
        self._odd = check_no_splits(root, folders, self.links) if self._is_guess else []
        if not self._names:
            expected = f"expected {root}/<class>/<image>, one folder per class"
            more = [*self._listed.warnings(), *odd_files(root, self._listed, self.links)]
            labels = f"for images without classes, pass --no-labels; for labels in names or in a table, see {CSV}"
            advice = "; ".join([labels, *more])
            raise BuildError(f"{root}: contains no class folders; {expected}; {advice}")

    @cached_property
    def _listed(self) -> Top:
        return list_top(self.root)

    @property
    def found(self) -> str:
        labels = "without labels" if self.no_labels else counted(len(self._names), "class", "classes")
        return f"{self.kind}, {labels}"

    def arguments(self) -> Json:
        return {**super().arguments(), "follow_links": self.links.follow}

    def scan(self) -> Scan:
        """Return every sample, by class in label order, then by name."""
        if not self.no_labels:
            check_classes(self.root, self._names, self._listed.folders)
        folders = [""] if self.no_labels else self._names
        below = system_of(self.root).walk(self.root, "", folders, self.links)
        return self._scanned(self._by_suffix.images(below))

    def _warnings(self, samples: int) -> list[str]:
        others = self._by_suffix.warnings("; --suffix reads those that are images")
        outside = [] if self.no_labels else odd_files(self.root, self._listed, self.links)
        used = [self._names[label] for label in self._used]
        names = used if len(used) == 1 else self._names
        odd = [*self._odd, *odd_names(self.root, names, self.links)] if self._is_guess else []
        if not self.no_labels:
            listed = [] if self._requested is None else self._listed.folders
            odd += [*alike_classes(self._names), *unlike_train(self.root, self._names, listed)]
        return [*unused_classes(self._names, self._used), *others, *self._listed.warnings(), *outside, *odd]


class BySuffix:
    """Leaves out files whose suffix shows that they are not images, such as Thumbs.db or notes.txt, and counts them.

    It also counts images whose names say that they are masks or copies of the image before or after them.
    """

    def __init__(self, more: Sequence[str] = ()) -> None:
        self._suffixes = READ_SUFFIXES | {name_bytes(suffix.lower()) for suffix in more}
        self._others = Counter[bytes]()
        self._images = self._masks = 0
        self._mask = ""  # the first one

    def images(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries of images, and those of what is no file."""
        self._others, self._images, self._masks, self._mask = Counter(), 0, 0, ""
        before, text = b"/", ""  # no name of an image begins like this
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if (suffix := suffix.lower()) not in self._suffixes and entry.problem in ("", EMPTY):
                self._others[suffix] += 1
                continue
            self._images += 1
            is_mask = stem.startswith(before) and OF_MASK.match(stem, len(before))
            if is_mask or (before.startswith(stem) and OF_MASK.match(before, len(stem))):  # "1-mask" comes before "1"
                self._masks += 1
                self._mask = self._mask or (entry.text if is_mask else text)
            if not is_mask:
                before, text = stem, entry.text
            yield entry

    def warnings(self, advice: str = "") -> list[str]:
        """Return warnings that count the files that the last listing left out, and images that may be masks."""
        kinds = [f"{name_text(suffix) or 'no suffix'}: {count}" for suffix, count in self._others.most_common(4)]
        found = counted(self._others.total(), "file")
        left = [f"{found} left out, because no image has such a suffix ({', '.join(kinds)}){advice}"] if kinds else []
        if 4 * self._masks > self._images:
            found = f"{self._masks} of {counted(self._images, 'image')} may be masks or copies of others"
            left.append(f"{found} (first {self._mask!r}); to store masks as such, see {SEGMENTATION}")
        return left


def open_folder(
    src: str | Path,
    *,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
    splits_as_classes: Annotated[
        bool, "Treat folders such as train and val as classes, even if they contain folders."
    ] = False,
    suffix: Annotated[
        list[str] | None, "Read files with this suffix, too, such as .dat. Repeat the flag for more suffixes.", "TEXT"
    ] = None,
    no_labels: NoLabels = False,
) -> FolderSource:
    """Read images from one folder per class. SRC holds <class>/.../<image>, or with --no-labels any images.

    Args:
        src: The folder that holds the class folders.
        classes: Folder names in label order. Default None: all class folders, sorted by their bytes.
        follow_links: Whether links may lead out of `src`. Default False: such a link is rejected.
        splits_as_classes: Whether folders named like splits may be classes although they contain folders. Default
            False: they raise BuildError.
        suffix: Suffixes of other files to read as images, such as ".dat"; default None: none.
        no_labels: Whether all images below `src` are of one class; default False.

    Raises:
        BuildError: If `src` cannot be read, has no class folders or seems to contain splits, or there are both
            `classes` and `no_labels`.

    Example:
        >>> source = open_folder("imagenet/val")
        >>> [cls.name for cls in source.scan().classes]
        ['n01440764', 'n01443537', 'n01484850', 'n02123045']
    """
    root = source_path(src)
    return FolderSource(
        root,
        classes=classes,
        follow_links=follow_links,
        splits_as_classes=splits_as_classes,
        suffix=suffix,
        no_labels=no_labels,
    )
