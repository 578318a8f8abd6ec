"""A tree of class folders: SRC/<class>/…/<file>, the layout of torchvision's ImageFolder."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from decodeonce.errors import BuildError, failure_from
from decodeonce.prep.entry import Entry, name_bytes, name_text
from decodeonce.prep.sources.base import Source, mode_of, read_file
from decodeonce.prep.sources.links import Links
from decodeonce.prep.sources.parallel_stat import stat_entries
from decodeonce.prep.sources.safe_open import expecting, read_small
from decodeonce.store.manifest import ImageClass

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
SUFFIXES = tuple(map(str.encode, IMAGE_SUFFIXES))
MAX_DEPTH = 64  # folders in a class folder that are walked; a deeper one is a reject, as one that cannot be walked


class ClassList(list[str]):
    """Class names in label order; `origin` says where they are from: the user's file, if there is one."""

    def __init__(self, names: Iterable[str], origin: str | None = None) -> None:
        super().__init__(names)
        self.origin = origin or getattr(names, "origin", "the class list")


class FolderSource(Source):
    """Every file below a class folder is a candidate, whatever its name; hidden ones (".name") are left out.

    Labels follow the sorted folder names, or `classes` where the caller fixes their order. A folder inside a class
    folder is walked, unless its name ends like a picture's, which makes it a reject.
    """

    kind = "folder"

    def __init__(self, root: Path, *, classes: Sequence[str] | None = None, follow_links: bool = False) -> None:
        super().__init__(root)
        self._links = Links(root, follow=follow_links)
        self._names_given = classes is not None
        self._names = ClassList(classes) if classes is not None else class_folders(root)
        if not self._names:
            raise BuildError(f"{root}: no folder in it; expected {root}/<class>/<picture>, a folder a class")

    def doubts(self, samples: int) -> list[str]:
        """That the classes look like splits, unless the caller gave them."""
        from decodeonce.prep.sources.splits import split_warnings  # which imports this module

        return [] if self._names_given else split_warnings(self.root, self._names, self._links)

    def facts(self) -> dict[str, Any]:
        """What `open_source` needs, beside kind and root, to make this source again."""
        return {"classes": self._names, "follow_links": self._links.follow}

    def classes(self) -> tuple[ImageClass, ...]:
        """The classes in label order."""
        return tuple(map(ImageClass, self._names))

    def entries(self) -> Iterator[Entry]:
        """Every candidate, by class in label order, then by name."""
        check_classes(self.root, self._names, class_folders(self.root))
        return list_folders(self.root, "", self._names, self._links)

    def read(self, entry: Entry) -> bytes:
        """The encoded bytes of one candidate; raises Stopped where it is gone or not as listed."""
        return read_file(self.root, entry, self._links)


def list_folders(root: Path, folder: str, names: Sequence[str], links: Links) -> Iterator[Entry]:
    """Every candidate in the class folders root/folder/<name>, labelled by their order, then by name."""
    starts = enumerate(os.path.join(name_bytes(folder), name_bytes(name)) for name in names)
    found = (entry for label, start in starts for entry in _walk(root, start, label, links))
    return stat_entries(root, found, links)


def _walk(root: Path, folder: bytes, label: int, links: Links, depth: int = 0) -> Iterator[Entry]:
    """The files below a class folder, whose size and mtime are not known yet; none if it is no folder."""
    path = os.path.join(os.fsencode(root), folder)
    if depth == 0 and not stat.S_ISDIR(mode_of(path)):
        return
    walked = depth < MAX_DEPTH and not links.folder_leads_outside(path)
    try:
        with os.scandir(path) as listing:
            found = sorted((item.name, walked and _to_walk(item)) for item in listing if not item.name.startswith(b"."))
    except OSError as error:
        raise failure_from(error, path) from None
    for name, to_walk in found:
        if to_walk:
            yield from _walk(root, os.path.join(folder, name), label, links, depth + 1)
        else:
            yield Entry(os.path.join(folder, name), label, 0, 0)


def _to_walk(item: os.DirEntry[bytes]) -> bool:
    return item.is_dir(follow_symlinks=False) and not item.name.lower().endswith(SUFFIXES)


def check_classes(top: Path, names: Sequence[str], present: Sequence[str]) -> None:
    """BuildError where a class list is none, or leaves out a class of the pictures in `top`."""
    origin = ClassList(names).origin
    check_no_duplicates(names)
    outside = [name for name in names if name in ("", ".", "..") or "/" in name or "\0" in name]
    if outside:
        raise BuildError(f"{origin} names {outside[0]!r}, expected the name of a folder in {top}")
    unlisted = sorted(set(present) - set(names))
    if unlisted:
        raise BuildError(f"{top / unlisted[0]}: a class folder that {origin} does not name; add it there")


def check_no_duplicates(names: Sequence[str]) -> None:
    """BuildError where a class list has a name twice."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise BuildError(f"{ClassList(names).origin} names {name!r} twice; every class has one label")


def class_folders(top: Path) -> list[str]:
    """The names of the class folders of `top`, sorted by their bytes."""
    with expecting(top, "expected a folder of class folders"), os.scandir(os.fsencode(top)) as listing:
        names = [item.name for item in listing if item.is_dir() and not item.name.startswith(b".")]
    return [name_text(name) for name in sorted(names)]


def open_folder(src: str | Path, *, classes: Sequence[str] | None = None, follow_links: bool = False) -> FolderSource:
    """Read a folder per class. SRC holds <class>/.../<image>."""
    return FolderSource(Path(src), classes=classes, follow_links=follow_links)


def read_class_list(path: Path) -> ClassList:
    """Read a file with a class name per line; raises ValueError if it cannot be read or has no name."""
    try:
        lines = [line.strip() for line in read_small(path).decode("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"--classes {path}: {found}; expected a file with a class name per line") from None
    names = ClassList(filter(None, lines), str(path))
    if not names:
        raise ValueError(f"--classes {path}: no name in it; expected a class name per line")
    return names
