"""Which rows of a store are meant: by their numbers, their classes, the names of their source pictures."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from decodeonce.store.manifest import ImageClass, overlap
from decodeonce.store.reader import Store
from decodeonce.store.regular_files import reading
from decodeonce.store.table import invalid_sample_error, unescape

_ROWS = re.compile("(-?[0-9]{1,18})?:(-?[0-9]{1,18})?")


@dataclass(frozen=True)
class Selection:
    """Rows for which all of this is so: one of `classes` (none given: any), a number in `rows`, `source` matches.

    `rows` are the ends of a slice, as Python has them. `source` is a shell pattern for the whole name of the source
    picture, in which `*` matches "/", too.
    """

    classes: tuple[str, ...] = ()
    source: str | None = None
    rows: tuple[int | None, int | None] = (None, None)

    def numbers(self, count: int) -> range:
        """Those of `count` rows that lie in `rows`."""
        return range(count)[slice(*self.rows)]


def row_range(text: str) -> tuple[int | None, int | None]:
    """The ends of "0:1000", ":1000" or "-500:", for a Selection; ValueError for anything else."""
    match = _ROWS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"rows are {text!r}, expected a range as 0:1000, :1000 or -500:")
    first, last = (int(end) if end else None for end in match.groups())
    return first, last


def labels_of(names: Sequence[str], classes: Sequence[ImageClass]) -> frozenset[int] | None:
    """The labels of the classes with these names, None for no names; ValueError if one names no class."""
    known = [cls.name for cls in classes]
    for name in names:
        if name not in known:
            close = [other for other in known if other.startswith(name)][:3] or difflib.get_close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the first of {len(known)} is {known[0]!r}"
            raise ValueError(f"no class is named {name!r}; {hint}")
    wanted = set(names)
    return frozenset(label for label, name in enumerate(known) if name in wanted) if wanted else None


def matching_lines(
    path: Path, rows: range, labels: frozenset[int] | None = None, source: str | None = None
) -> Iterator[tuple[int, bytes]]:
    """(row, line) of the lines of a samples.tsv that are of these rows and labels, with sources like `source`."""
    chosen = _chooser(labels, source)
    with reading(path) as file:
        next(file, None)
        for row, encoded in zip(rows, islice(file, rows.start, rows.stop), strict=False):
            try:
                if chosen(encoded):
                    yield row, encoded
            except (ValueError, IndexError):
                raise invalid_sample_error(path, row) from None


def _chooser(labels: frozenset[int] | None, source: str | None) -> Callable[[bytes], bool]:
    """Whether a line is wanted; it raises ValueError or IndexError if the line is none of a samples.tsv."""
    wanted = None if labels is None else {b"%d" % label for label in labels}
    matches = re.compile(fnmatch.translate(source)).match if source is not None else None

    def chosen(encoded: bytes) -> bool:
        fields = encoded.split(b"\t", 4)
        if wanted is not None and fields[1] not in wanted:
            return False
        return matches is None or matches(unescape(fields[3].decode())) is not None

    return chosen if wanted is not None or matches else lambda encoded: True


def select_lines(store: Store, selection: Selection) -> Iterator[tuple[int, bytes]]:
    """(row, line of samples.tsv) of the selected rows that the store, or staged part, holds.

    ValueError if the store has no class of a name.
    """
    held = overlap(selection.numbers(len(store)), store.rows)
    return matching_lines(store.paths.samples, held, labels_of(selection.classes, store.classes), selection.source)
