"""A split of ImageNet that is read from its tar without unpacking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Entry, name_bytes, name_text
from decodeonce.prep.sources.base import open_listed
from decodeonce.prep.sources.files import SourceFiles
from decodeonce.prep.sources.formats.member import Member, sort_members
from decodeonce.prep.sources.formats.tar import Window, list_tar
from decodeonce.prep.sources.imagenet.files import is_image_name
from decodeonce.prep.sources.imagenet.split import ImagenetSplit
from decodeonce.prep.sources.parallel_stat import parallel_map
from decodeonce.store import disk

TARS_AT_ONCE = 64  # class tars listed ahead: 83,000 images of ImageNet, 20 MB


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
        file = self._files.files[unit]
        name = b"/".join(filter(None, (name_bytes(file.name), above, member.name)))
        return Entry(name, label, member.size, file.mtime_ns, member.problem, unit, member.place)


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
        """Return the members of a tar. Opens the tar on each call, because SourceFiles is not thread-safe."""
        _, size, mtime_ns = self._files.files[tar.unit]
        path = self._files.path(tar.unit)
        fd = open_listed(path, size, mtime_ns)
        try:
            named = name_text(path + (b": " + tar.inner if tar.inner else b""))
            return list(list_tar(Window(fd, named, tar.first, tar.size)))
        finally:
            disk.close(fd)
