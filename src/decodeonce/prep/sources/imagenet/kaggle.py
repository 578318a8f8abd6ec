"""A split of ImageNet that is read from Kaggle's zip without unpacking."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Entry, Undecodable, name_bytes, name_text
from decodeonce.prep.sources.files import SourceFile, SourceFiles
from decodeonce.prep.sources.formats.member import Member, sort_members
from decodeonce.prep.sources.formats.zipped import list_zip, read_member
from decodeonce.prep.sources.imagenet.archive import ArchiveSource
from decodeonce.prep.sources.imagenet.companions import MAPPING, SOLUTION, CompanionFiles
from decodeonce.prep.sources.imagenet.files import is_image_name

_IMAGE_PATH = re.compile(rb"(?:(?:(?:ILSVRC/)?Data/)?CLS-LOC/)?(train|val)/(?:([^/]+)/)?.+")
_LISTS = (MAPPING.encode(), SOLUTION.encode())


class ImagenetZip:
    """The contents of a zip with Kaggle's layout: images by split and class (b"" for none), and Kaggle's lists."""

    def __init__(self, root: Path, file: SourceFile) -> None:
        self.files = SourceFiles(root, [file])
        self.path = root / file.name
        self.splits: dict[str, dict[bytes, list[Member]]] = {}
        self._lists: dict[str, Member] = {}
        for member in list_zip(self.path):
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
            return read_member(self.files, 0, member.place, member.size)
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
        return read_member(self._files, entry.unit, entry.place, entry.size)
