"""A split of ImageNet read out of its tar, where it lies."""

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

TARS_AT_ONCE = 64  # listed ahead: 83,000 pictures of ImageNet, 20 MB


class ArchiveSource(ImagenetSplit):
    """A split in files that hold many pictures each; `files` are their names, sizes and mtimes."""

    def __init__(self, root: Path, *, files: Iterable[Any], **facts: Any) -> None:
        super().__init__(root, **facts)
        self._files = SourceFiles(root, files)

    @property
    def top(self) -> Path:
        """The archive."""
        return self.root / self._files.files[0].name

    def facts(self) -> dict[str, Any]:
        """What `open_source` needs, beside kind and root, to make this source again."""
        return {**super().facts(), "files": self._files.facts()}

    def stamp(self) -> Any:
        """The archives as they are now, and all that labels follow from."""
        return {**self.facts(), "labels": self.labels.digest if self.is_flat else ""}

    def holder(self, entry: Entry) -> bytes:
        """The path of the archive."""
        return self._files.path(entry.unit)

    def _entry(self, member: Member, label: int, unit: int = 0, above: bytes = b"") -> Entry:
        """The entry of a member of file `unit`, its name below that of the file and `above`."""
        file = self._files.files[unit]
        name = b"/".join(filter(None, (name_bytes(file.name), above, member.name)))
        return Entry(name, label, member.size, file.mtime_ns, member.problem, unit, member.place)


class ClassTar(NamedTuple):
    """The tar of a class: the bytes [first, first + size) of file `unit`; `inner` is its name in a tar around it."""

    unit: int
    first: int
    size: int
    inner: bytes = b""


class ImagenetTarSource(ArchiveSource):
    """ILSVRC2012_img_train.tar, which is a tar of class tars; these as files of a folder; or ILSVRC2012_img_val.tar."""

    kind = "imagenet-tar"

    def __init__(self, root: Path, *, apart: bool = False, **facts: Any) -> None:
        super().__init__(root, **facts)
        self._apart = apart

    def facts(self) -> dict[str, Any]:
        """What `open_source` needs, beside kind and root, to make this source again."""
        return {**super().facts(), "apart": self._apart}

    @property
    def top(self) -> Path:
        """The tar, or the folder of class tars."""
        return super().top.parent if self._apart else super().top

    @property
    def is_flat(self) -> bool:
        """Whether its pictures are not in class tars."""
        return self.split == "val"

    @property
    def form(self) -> str:
        """What it is, in a few words."""
        return f"class tars in {self.top.name}" if self._apart else self.top.name

    def present_classes(self) -> list[str]:
        """The classes that have a tar, or that the labels name."""
        return self.labels.classes if self.is_flat else sorted(self._class_tars(), key=name_bytes)

    def entries(self) -> Iterator[Entry]:
        """Every picture, by class in label order, then by name; headers only are read."""
        if self.is_flat:
            whole = ClassTar(0, 0, self._files.files[0].size)
            members = sort_members((member for member in self._list(whole) if is_image_name(member.base_name)), "tar")
            return iter(self.labels.sort([self._entry(member, 0) for member in members], self._names))
        return self._by_class(self._class_tars())

    def read(self, entry: Entry) -> bytes:
        """The encoded bytes of one candidate; raises Stopped where the tar is gone or not as listed."""
        return self._files.read(entry.unit, entry.place, entry.size)

    def _by_class(self, tars: dict[str, ClassTar]) -> Iterator[Entry]:
        here = ((label, tars[name]) for label, name in enumerate(self._names) if name in tars)
        return chain.from_iterable(parallel_map(self.top, self._class_entries, here, TARS_AT_ONCE))

    def _class_entries(self, labelled: tuple[int, ClassTar]) -> list[Entry]:
        label, tar = labelled
        members = (member._replace(place=tar.first + member.place) for member in self._list(tar))
        return [self._entry(member, label, tar.unit, tar.inner) for member in sort_members(members, "tar")]

    def _class_tars(self) -> dict[str, ClassTar]:
        if self._apart:
            return {Path(file.name).stem: ClassTar(unit, 0, file.size) for unit, file in enumerate(self._files.files)}
        found: dict[str, ClassTar] = {}
        for member in self._list(ClassTar(0, 0, self._files.files[0].size)):
            if not member.name.endswith(b".tar"):
                continue
            name = name_text(member.base_name[: -len(".tar")])
            if name in found or member.problem:
                raise BuildError(f"{self.top}: {name}.tar: {member.problem or 'twice in the tar'}; get it again")
            found[name] = ClassTar(0, member.place, member.size, member.name)
        if not found:
            raise BuildError(f"{self.top}: no class tars (n01440764.tar, ...) in it, expected those of the train split")
        return found

    def _list(self, tar: ClassTar) -> list[Member]:
        """A tar's files. It is opened anew each time: threads may list, and SourceFiles is one thread's."""
        _, size, mtime_ns = self._files.files[tar.unit]
        path = self._files.path(tar.unit)
        fd = open_listed(path, size, mtime_ns)
        try:
            named = name_text(path + (b": " + tar.inner if tar.inner else b""))
            return list(list_tar(Window(fd, named, tar.first, tar.size)))
        finally:
            disk.close(fd)
