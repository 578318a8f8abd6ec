"""Pictures that a text file lists, with labels or in folders that are their classes."""

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
    """The files that a list names, in its order: a path a line, or a table of paths and labels (TSV, CSV).

    The list is read twice, first for its classes; of a path that stands in it twice the second is a reject.
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
        """The list itself: a store may lie beside the pictures, for no folder is walked."""
        return self.file

    @property
    def found(self) -> str:
        """How the list is written."""
        name = self.file.name if self.file.parent == self.root else self.file
        return f"the list {name} ({find_layout(self.file, self.column_names)})"

    def facts(self) -> dict[str, Any]:
        """What `open_source` needs, beside kind and root, to make this source again."""
        classes = [cls.name for cls in self.classes()]
        column = list(self.column_names)
        return {"file": str(self.file), "classes": classes, "column": column, "follow_links": self._links.follow}

    def entries(self) -> Iterator[Entry]:
        """Every candidate, in the order of the list."""
        self._first_pass()
        return stat_entries(self.root, self._listed(), self._links)

    def read(self, entry: Entry) -> bytes:
        """The encoded bytes of one candidate; raises Stopped where it is gone or not as listed."""
        return read_file(self.root, entry, self._links)

    def _first_pass(self) -> None:
        """Learn the classes."""
        seen: dict[str, str] = {}
        labelled = False
        for line, name in self._lines():
            labelled = line.label is not None
            label = self._label(line, name)
            if label and label not in seen:
                seen[label] = f"{self.file}: line {line.number}"
        self._learn(seen, numbered=labelled)

    def _listed(self) -> Iterator[Entry]:
        listed = set[bytes]()  # digests, some 100 bytes a line
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
                    f"{self.file}: line {line.number}: {line.path!r} is not below {root}; give the folder that holds "
                    "all of them with --root, / if there is no other"
                )
            yield line, name_bytes(name)

    def _label(self, line: Line, name: bytes) -> str:
        if line.label is not None:
            return line.label
        parts = name.rsplit(b"/", 2)
        if len(parts) == 1:
            raise BuildError(
                f"{self.file}: line {line.number}: {line.path!r} has neither a label nor a folder that names it; "
                "add a column of labels, or give a --root further up"
            )
        return name_text(parts[-2])


def path_below(root: str, path: str) -> str | None:
    """A path, absolute or relative to `root`, as it is written below `root`; None if it lies elsewhere."""
    if path[0] not in "/." and "/." not in path and "//" not in path and path[-1] != "/":
        return path  # as nearly all are: normalizing takes longer than all else
    top = root.rstrip("/") + "/"
    whole = os.path.normpath(os.path.join(top, path))
    return whole[len(top) :] if whole.startswith(top) and whole != top else None


def open_list(
    src: str | Path,
    *,
    root: Annotated[Path | None, "Folder that relative paths start from. (default: the list's folder)", "DIR"] = None,
    column: Annotated[
        list[str] | None, "Keep this column of numbers, named by the header line; repeatable.", "NAME"
    ] = None,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ListSource:
    """Read images that a file lists. SRC has a path per line, or is a TSV or CSV table of paths and labels."""
    file = Path(os.path.abspath(src))
    if root is not None and not root.is_dir():
        raise BuildError(f"{root}: no such folder; expected the one that the paths in {file} start from")
    top = Path(os.path.abspath(root)) if root else file.parent
    return ListSource(top, file=str(file), classes=classes, column=column, follow_links=follow_links)
