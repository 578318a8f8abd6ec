"""Add masks or second images to any source, from folders that mirror the names of its images."""

from __future__ import annotations

import errno
import inspect
import itertools
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.prep.listing import SEGMENTATION, Entry, Scan, name_text
from decodeonce.prep.sources.base import Source, SourceWrapper
from decodeonce.prep.sources.files import SUFFIXES, Links, expecting, file_entry, mode_of, parallel_map, read_file
from decodeonce.remote import is_url, source_path
from decodeonce.store.layout import Json, Paired
from decodeonce.store.manifest import WITH_PAIRED

MOST_NAMES = 2_000_000  # in folders, which are kept; each takes about 60 bytes
MOST_LIKE = 100  # names that begin like that of an image without a mask, to look at
TEXTS = (b".xml", b".json", b".txt", b".csv", b".tsv")
# An index into this list is in plans.
ENDINGS = tuple(sorted((*SUFFIXES, *map(bytes.upper, SUFFIXES)), key=lambda suffix: suffix != b".png"))


class PairedSource(SourceWrapper):
    """A source whose images have masks or second images, which are files in other folders.

    The second image of `a/b.jpg` is `a/b` in its folder, with the suffix of any image format. An image without a second
    image, or with several, is rejected. Rows hold second images in the order of their names.

    Args:
        source: The source of the images.
        folders: The folder of each mask ("mask") or image of three channels ("target:rgb").
        follow_links: Whether links may lead out of a folder. Default False: the image of such a link is rejected.

    Raises:
        BuildError: If `folders` is empty or has a URL. Listing raises it if a folder does not exist.

    Example:
        >>> source = PairedSource(open_imagenet("imagenet", split="val"), {"target:rgb": Path("imagenet")})
        >>> build(source, Path("pairs.store"), Recipe(height=64, width=64)).count
        16
        >>> open_store("pairs.store").paired["target"].shape
        (16, 64, 64, 3)
    """

    def __init__(self, source: Source, folders: Mapping[str, str | Path], *, follow_links: bool = False) -> None:
        super().__init__(source, WITH_PAIRED)
        if not folders:
            raise BuildError(f"{self.root}: `folders` is empty, expected a mapping such as {{'mask': Path()}}")
        self._own = list(map(Paired.parse, sorted(folders)))  # in the order in which the JSON of a plan holds them
        self.paired = (*source.paired, *self._own)
        paths = {one.name: source_path(folders[one.text]) for one in self._own}
        for path in filter(is_url, paths.values()):
            raise BuildError(f"{path}: masks must be in a local folder, or in the tars of the images; download them")
        self._folders = {name: Path(os.path.abspath(path)) for name, path in paths.items()}
        self._links = {name: Links(folder, follow=follow_links) for name, folder in self._folders.items()}

    def arguments(self) -> Json:
        folders = {one.text: str(self._folders[one.name]) for one in self._own}
        follow_links = any(links.follow for links in self._links.values())
        return {"source": self.source.arguments(), "folders": folders, "follow_links": follow_links}

    @property
    def found(self) -> str:
        folders = ", ".join(f"{name} from {folder}" for name, folder in self._folders.items())
        return f"{self.source.found}, {folders}"

    def scan(self) -> Scan:
        """Return the scan of the other source with the files that belong to each image."""
        self._check_folders()
        scan = self.source.scan()
        with_files = partial(self._with_files, FolderNames())
        return replace(scan, entries=parallel_map(next(iter(self._folders.values())), with_files, scan.entries))

    def find(self, names: Collection[bytes]) -> Iterator[Entry]:
        """Yield the entries with these names."""
        self._check_folders()
        return map(partial(self._with_files, FolderNames()), self.source.find(names))

    def read(self, entry: Entry) -> list[bytes]:
        """Return the encoded image, then what belongs to it, after checking that these are still the listed files."""
        others = []
        for name, folder in self._folders.items():
            ending, size, version = map(int, entry.numbers[_key(name)])
            file = Entry(os.path.splitext(entry.name)[0] + ENDINGS[ending], 0, size, version)
            others.append(read_file(folder, file, self._links[name]))
        return [*super().read(entry), *others]

    def _check_folders(self) -> None:
        masks = {one.name for one in self._own if one.channels == 1}
        for name, folder in self._folders.items():
            if not os.path.isdir(folder):
                raise BuildError(f"{folder}: no such folder; expected {name} images, named like those in {self.root}")
            if name in masks and os.path.realpath(folder) == os.path.realpath(self.root):
                advice = "move the masks into a folder of their own"
                raise BuildError(f"--paired {name}={folder}: this is the folder of the images; {advice}")

    def _with_files(self, names_in: FolderNames, entry: Entry) -> Entry:
        """Return the entry with the ending, size and time of each file, or with the problem of a missing one."""
        own: dict[str, list[float]] = {}
        for name, folder in () if entry.problem else self._folders.items():
            stem = os.path.splitext(entry.name)[0]
            place, base_name = os.path.split(os.path.join(os.fsencode(folder), stem))
            inside = b"\0" not in stem and not os.path.normpath(stem).startswith((b"/", b"../"))
            names = names_in[place] if inside else []
            found = [one for one in _beginning_with(names, base_name + b".") if _is_image_of(one, base_name)]
            if len(found) > 1:  # folders may have such names
                found = [one for one in found if mode_of(os.path.join(place, one))]
            if len(found) > 1:
                problem = f"{name}: {len(found)} images in its folder have this name; keep only one"
                return replace(entry, problem=problem)
            if not found:
                return replace(entry, problem=f"no {name}: its folder has {_like(names, base_name)}")
            ending = os.path.splitext(found[0])[1]
            file = file_entry(folder, stem + ending, 0, self._links[name])
            if file.problem:
                return replace(entry, problem=f"{name}: {file.problem}")
            own[_key(name)] = [ENDINGS.index(ending), file.size, file.version]
        sizes = (str(int(numbers[1])) for numbers in own.values())
        return replace(entry, numbers={**entry.numbers, **own}, digested=(*entry.digested, *sizes))


class FolderNames:
    """The sorted names in each folder; none if there is no such folder. Those of the last folders are kept."""

    def __init__(self) -> None:
        self._names: dict[bytes, list[bytes]] = {}
        self._count, self._lock = 0, Lock()  # only one thread at a time lists a folder

    def __getitem__(self, folder: bytes) -> list[bytes]:
        with self._lock:
            if folder not in self._names:
                while self._names and self._count > MOST_NAMES:
                    self._count -= 1 + len(self._names.pop(next(iter(self._names))))
                names = self._names[folder] = _sorted_names(folder)
                self._count += 1 + len(names)
            return self._names[folder]


def _sorted_names(folder: bytes) -> list[bytes]:
    with expecting(folder, "expected a folder that can be listed"):
        try:
            return sorted(os.listdir(folder))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return []
            raise


def _beginning_with(names: Sequence[bytes], start: bytes) -> Iterator[bytes]:
    """Yield the names that begin with `start` from a sorted list."""
    places = range(bisect_left(names, start), len(names))
    return itertools.takewhile(lambda name: name.startswith(start), map(names.__getitem__, places))


def _is_image_of(name: bytes, base_name: bytes) -> bool:
    stem, ending = os.path.splitext(name)
    return stem == base_name and ending in ENDINGS


def _like(names: Sequence[bytes], base_name: bytes) -> str:
    """Return what a folder has instead of the image of this name."""
    for mark in (b".", b"_", b"-", b" "):
        for name in itertools.islice(_beginning_with(names, base_name + mark), MOST_LIKE):
            stem, ending = os.path.splitext(name)
            if stem == base_name and ending.lower() not in TEXTS:
                return f"{name_text(name)!r} instead; save it as a PNG of 8 bits"
            if name[len(base_name) + 1 :][:1].isalpha() and mark != b".":  # 1_1.png belongs to 1_1.jpg
                advice = f"give masks the names of their images, as {SEGMENTATION}#masks-with-other-names says"
                return f"{name_text(name)!r} instead; {advice}"
    return "no image with this name and any suffix"


def _key(name: str) -> str:
    return f"paired {name}"


def open_with_paired(
    opener: Callable[..., Source], src: str, paired: Mapping[str, str], *, follow_links: bool, **given: Any
) -> Source:
    """Open SRC with masks and second images: folders, unless the opener itself has a parameter `paired`."""
    if "paired" in inspect.signature(opener).parameters:
        return opener(src, **({"paired": paired} if paired else {}), **given, follow_links=follow_links)
    source = opener(src, **given, follow_links=follow_links)
    return PairedSource(source, paired, follow_links=follow_links) if paired else source
