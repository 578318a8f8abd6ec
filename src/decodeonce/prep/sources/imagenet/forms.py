"""The forms of a split of ImageNet: files in folders, the tars as downloaded, and Kaggle's zip.

Archives are read without unpacking.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Entry, Undecodable, name_bytes, name_text
from decodeonce.prep.sources.files import named_entries, parallel_map, read_file, stat_entries
from decodeonce.prep.sources.folder import SUFFIXES, check_classes, class_folders, list_folders
from decodeonce.prep.sources.formats.member import Member, sort_members
from decodeonce.prep.sources.formats.tar import list_tar
from decodeonce.prep.sources.formats.zipped import list_zip, read_member
from decodeonce.prep.sources.holders import SourceFile, SourceFiles
from decodeonce.prep.sources.imagenet.labels import MAPPING, SOLUTION, CompanionFiles
from decodeonce.prep.sources.imagenet.split import ImagenetSplit
from decodeonce.prep.sources.safe_open import Links

TARS_AT_ONCE = 64  # class tars listed ahead: 83,000 images of ImageNet, 20 MB
_IMAGE_PATH = re.compile(rb"(?:(?:(?:ILSVRC/)?Data/)?CLS-LOC/)?(train|val)/(?:([^/]+)/)?.+")
_LISTS = (MAPPING.encode(), SOLUTION.encode())


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

    def find(self, names: Collection[bytes]) -> Iterator[Entry]:
        return named_entries(self.root, names, self._links)


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


class ArchiveSource(ImagenetSplit):
    """A split in files that hold many images each. `files` are their names, sizes in bytes and mtimes in ns."""

    def __init__(self, root: Path, *, files: Iterable[Any], **facts: Any) -> None:
        super().__init__(root, **facts)
        self._files = SourceFiles(root, files)

    @property
    def top(self) -> Path:
        return self.root / self._files.files[0].name

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "files": self._files.facts()}

    def stamp(self) -> Any:
        return {**self.facts(), "labels": self.labels.digest if self.is_flat else ""}

    def holder(self, entry: Entry) -> bytes:
        return self._files.path(entry.unit)

    def _entry(self, member: Member, label: int, unit: int = 0, above: bytes = b"") -> Entry:
        """Return the entry of a member of file `unit`. Its name is <file>/<above>/<member>."""
        name, mtime_ns = self._path(unit, above, member.name), self._files.files[unit].mtime_ns
        return Entry(name, label, member.size, mtime_ns, member.problem, unit, member.place)

    def _path(self, unit: int, *inside: bytes) -> bytes:
        return b"/".join(filter(None, (name_bytes(self._files.files[unit].name), *inside)))


class ClassTar(NamedTuple):
    """The tar of a class: bytes [first, first + size) of file `unit`. `inner` is its name if it is in another tar."""

    unit: int
    first: int
    size: int
    inner: bytes = b""


class ImagenetTarSource(ArchiveSource):
    """ILSVRC2012_img_train.tar (a tar of class tars), a folder of class tars (`apart`), or ILSVRC2012_img_val.tar."""

    kind = "imagenet-tar"

    def __init__(self, root: Path, *, apart: bool = False, **facts: Any) -> None:
        super().__init__(root, **facts)
        self._apart = apart

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "apart": self._apart}

    @property
    def top(self) -> Path:
        return super().top.parent if self._apart else super().top

    @property
    def is_flat(self) -> bool:
        return self.split == "val"

    @property
    def form(self) -> str:
        return f"class tars in {self.top.name}" if self._apart else self.top.name

    def present_classes(self) -> list[str]:
        return self.labels.classes if self.is_flat else sorted(self._class_tars(), key=name_bytes)

    def entries(self) -> Iterator[Entry]:
        """Yield every image, by class in label order, then by name. Only headers are read."""
        if self.is_flat:
            whole = ClassTar(0, 0, self._files.files[0].size)
            members = sort_members(
                (member for member in self._members(whole) if is_image_name(member.base_name)), "tar"
            )
            return iter(self.labels.sort([self._entry(member, 0) for member in members], self._names))
        return self._by_class(self._class_tars())

    def read(self, entry: Entry) -> bytes:
        return self._files.read(entry.unit, entry.place, entry.size)

    def find(self, names: Collection[bytes]) -> Iterator[Entry]:
        """Yield the entries with these names. Only their class tars are listed."""
        if self.is_flat:
            return super().find(names)
        above = {name[:at] for name in names for at, byte in enumerate(name) if byte == ord("/")}
        tars = {name: tar for name, tar in self._class_tars().items() if self._path(tar.unit, tar.inner) in above}
        return (entry for entry in self._by_class(tars) if entry.name in names)

    def _by_class(self, tars: dict[str, ClassTar]) -> Iterator[Entry]:
        here = ((label, tars[name]) for label, name in enumerate(self._names) if name in tars)
        return chain.from_iterable(parallel_map(self.top, self._class_entries, here, TARS_AT_ONCE))

    def _class_entries(self, labelled: tuple[int, ClassTar]) -> list[Entry]:
        label, tar = labelled
        members = (member._replace(place=tar.first + member.place) for member in self._members(tar))
        return [self._entry(member, label, tar.unit, tar.inner) for member in sort_members(members, "tar")]

    def _class_tars(self) -> dict[str, ClassTar]:
        if self._apart:
            return {Path(file.name).stem: ClassTar(unit, 0, file.size) for unit, file in enumerate(self._files.files)}
        found: dict[str, ClassTar] = {}
        for member in self._members(ClassTar(0, 0, self._files.files[0].size)):
            if not member.name.endswith(b".tar"):
                continue
            name = name_text(member.base_name[: -len(".tar")])
            if name in found or member.problem:
                raise BuildError(f"{self.top}: {name}.tar: {member.problem or 'twice in the tar'}; download it again")
            found[name] = ClassTar(0, member.place, member.size, member.name)
        if not found:
            raise BuildError(
                f"{self.top}: contains no class tars; expected those of the train split (n01440764.tar, ...)"
            )
        return found

    def _members(self, tar: ClassTar) -> list[Member]:
        """Return the members of a tar."""
        with self._files.opened(tar.unit) as file:
            return list(list_tar(file.part(tar.first, tar.size, name_text(tar.inner)) if tar.inner else file))


class ImagenetZip:
    """The contents of a zip with Kaggle's layout: images by split and class (b"" for none), and Kaggle's lists."""

    def __init__(self, root: Path, file: SourceFile) -> None:
        self.files = SourceFiles(root, [file])
        self.path = root / file.name
        self.splits: dict[str, dict[bytes, list[Member]]] = {}
        self._lists: dict[str, Member] = {}
        for member in list_zip(self.files.holder(0)):
            if (match := _IMAGE_PATH.fullmatch(member.name)) is not None:
                split, name = match[1].decode(), match[2] or b""
                if name or is_image_name(member.base_name):
                    self.splits.setdefault(split, {}).setdefault(name, []).append(member)
            elif member.base_name in _LISTS:
                self._lists[member.base_name.decode()] = member

    def content(self, name: str) -> bytes | None:
        """Return the bytes of Kaggle's list of this name, or None; raise BuildError if it cannot be read."""
        member = self._lists.get(name)
        if member is None:
            return None
        try:
            if member.problem:
                raise Undecodable(member.problem)
            return read_member(self.files.holder(0), member.place, member.size)
        except Undecodable as error:
            raise BuildError(f"{self.path}: {name}: {error}; download it again") from None


@lru_cache(maxsize=4)
def zip_listing(root: Path, file: SourceFile) -> ImagenetZip:
    """List a zip. Kaggle's takes 20 s, so the last four are cached."""
    return ImagenetZip(root, file)


class ImagenetZipSource(ArchiveSource):
    """A split in a zip, in class folders or, for val, in one folder."""

    kind = "imagenet-zip"

    @property
    def _listing(self) -> ImagenetZip:
        return zip_listing(self.root, self._files.files[0])

    @property
    def _members_by_class(self) -> dict[bytes, list[Member]]:
        return self._listing.splits.get(self.split, {})

    @property
    def is_flat(self) -> bool:
        return b"" in self._members_by_class and self.split == "val"

    @property
    def form(self) -> str:
        return f"{self.split} in {self.top.name}"

    @property
    def companions(self) -> CompanionFiles:
        """Companion files in the zip, then in the folders around it."""
        return CompanionFiles(self.top, self._listing.content)

    def present_classes(self) -> list[str]:
        if self.is_flat:
            return self.labels.classes
        return [name_text(name) for name in sorted(self._members_by_class) if name]

    def entries(self) -> Iterator[Entry]:
        """Yield every image, by class in label order, then by name."""
        if self.is_flat:
            if len(self._members_by_class) > 1:
                raise BuildError(
                    f"{self.top}: val images are both in one folder and in class folders; unpack the zip and sort them"
                )
            members = sort_members(self._members_by_class[b""], "zip")
            return iter(self.labels.sort([self._entry(member, 0) for member in members], self._names))
        self.note_stray_files([member.name for member in self._members_by_class.get(b"", [])])
        return self._by_class()

    def _by_class(self) -> Iterator[Entry]:
        for label, name in enumerate(self._names):
            for member in sort_members(self._members_by_class.get(name_bytes(name), []), "zip"):
                yield self._entry(member, label)

    def read(self, entry: Entry) -> bytes:
        return read_member(self._files.holder(entry.unit), entry.place, entry.size)
