"""Images that a text file lists, with labels or in folders that are their classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import xxhash

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Entry, name_bytes, name_text
from decodeonce.prep.sources.base import read_file
from decodeonce.prep.sources.formats.labels import LabelledSource
from decodeonce.prep.sources.formats.lists import Line, find_layout, read_list
from decodeonce.prep.sources.formats.numbers import parse_value
from decodeonce.prep.sources.links import Links
from decodeonce.prep.sources.parallel_stat import stat_entries


class ListSource(LabelledSource):
    """The images that a text file lists, in its order: one path per line, or a TSV or CSV table of paths and labels.

    The list is read twice, first for its classes. Duplicate paths are rejected.

    Args:
        root: The folder that relative paths start from. Absolute paths must be below it.
        file: Path of the list.
        classes: Class names in label order; default None: labels that are all whole numbers are the class numbers,
            other labels are sorted by their bytes.
        column: Names of columns of numbers to keep; default None: none. The list then needs a header line.
        follow_links: Whether links may lead out of `root`. Default False: such a link is rejected.
    """

    kind = "list"

    def __init__(
        self,
        root: Path,
        *,
        file: str,
        classes: Sequence[str] | None = None,
        column: Sequence[str] | None = None,
        follow_links: bool = False,
    ) -> None:
        super().__init__(root, classes, column)
        self._links = Links(root, follow=follow_links)
        self.file = Path(file)

    @property
    def top(self) -> Path:
        """The list itself: no folder is listed, so a store may be written next to the images."""
        return self.file

    @property
    def found(self) -> str:
        name = self.file.name if self.file.parent == self.root else self.file
        return f"list {name} ({find_layout(self.file, self.column_names)})"

    def facts(self) -> dict[str, Any]:
        classes = [cls.name for cls in self.classes()]
        column = list(self.column_names)
        return {"file": str(self.file), "classes": classes, "column": column, "follow_links": self._links.follow}

    def entries(self) -> Iterator[Entry]:
        """Yield every sample, in the order of the list."""
        self._learn_classes()
        return stat_entries(self.root, self._listed(), self._links)

    def read(self, entry: Entry) -> bytes:
        return read_file(self.root, entry, self._links)

    def _learn_classes(self) -> None:
        seen: dict[str, str] = {}
        labelled = False
        for line, name in self._lines():
            labelled = line.label is not None
            label = self._label(line, name)
            if label and label not in seen:
                seen[label] = f"{self.file}: line {line.number}"
        self._learn(seen, numbered=labelled)

    def _listed(self) -> Iterator[Entry]:
        listed = set[bytes]()  # digests of the names: about 100 bytes per line
        for line, name in self._lines():
            label, problem = self._class_of(self._label(line, name))
            if (digest := xxhash.xxh3_128_digest(name)) in listed:
                problem = "twice in the list"
            listed.add(digest)
            fields = () if problem else line.values
            values = self._checked(map(parse_value, fields), f"{self.file}: line {line.number}") if fields else ()
            yield Entry(name, label, 0, 0, problem, values=values)

    def _lines(self) -> Iterator[tuple[Line, bytes]]:
        root = name_text(os.fsencode(self.root))
        for line in read_list(self.file, self.column_names):
            name = path_below(root, line.path)
            if name is None:
                raise BuildError(
                    f"{self.file}: line {line.number}: {line.path!r} is not below {root}; pass a folder that holds "
                    "all paths as --root, for example /"
                )
            yield line, name_bytes(name)

    def _label(self, line: Line, name: bytes) -> str:
        if line.label is not None:
            return line.label
        parts = name.rsplit(b"/", 2)
        if len(parts) == 1:
            raise BuildError(
                f"{self.file}: line {line.number}: {line.path!r} has neither a label nor a folder that names its "
                "class; add a column of labels, or pass a parent folder as --root"
            )
        return name_text(parts[-2])


def path_below(root: str, path: str) -> str | None:
    """Return a path, absolute or relative to `root`, as a path below `root`; None if it is not below it."""
    if path[0] not in "/." and "/." not in path and "//" not in path and path[-1] != "/":
        return path  # the common case: normalizing takes longer than everything else
    top = root.rstrip("/") + "/"
    whole = os.path.normpath(os.path.join(top, path))
    return whole[len(top) :] if whole.startswith(top) and whole != top else None


def open_list(
    src: str | Path,
    *,
    root: Annotated[Path | None, "Resolve relative paths from this folder. (default: the list's folder)", "DIR"] = None,
    column: Annotated[
        list[str] | None, "Keep this column of numbers, named by the header line; repeatable.", "NAME"
    ] = None,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ListSource:
    """Read images that a file lists. SRC has a path per line, or is a TSV or CSV table of paths and labels.

    Args:
        src: The list, UTF-8 text.
        root: The folder that relative paths start from; default None: the list's folder. Absolute paths must be below
            it.
        column: Names of columns of numbers, or of JSON lists of numbers, to keep in the store; default None: none. The
            list then needs a header line.
        classes: Class names in label order; default None: labels that are all whole numbers are the class numbers,
            other labels are sorted by their bytes. A list without labels uses the name of each image's folder.
        follow_links: Whether links may lead out of `root`. Default False: such a link is rejected.

    Raises:
        BuildError: If `root` is not a folder. Listing raises it if the list cannot be read or a line is invalid.

    Example:
        >>> source = open_list("train.csv", root=Path("/data/images"), column=["score"])
    """
    file = Path(os.path.abspath(src))
    if root is not None and not root.is_dir():
        raise BuildError(f"{root}: no such folder; expected the folder that the paths in {file} start from")
    top = Path(os.path.abspath(root)) if root else file.parent
    return ListSource(top, file=str(file), classes=classes, column=column, follow_links=follow_links)
