"""Select rows of a store by number, class and source name."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from decodeonce.store.files import reading
from decodeonce.store.manifest import ImageClass, overlap
from decodeonce.store.reader import Store
from decodeonce.store.table import invalid_sample_error, unescape

_ROWS = re.compile("(-?[0-9]{1,18})?:(-?[0-9]{1,18})?")


@dataclass(frozen=True)
class Selection:
    """Conditions on rows. A row is selected if it meets all of them.

    Attributes:
        classes: Names of classes. Default: all classes.
        source: Shell pattern for the whole source name of the sample, in which `*` also matches "/". Default: any.
        rows: Start and stop of a Python slice of row numbers. Default: all rows.

    Example:
        >>> selection = Selection(classes=("n01440764",))
        >>> convert(["val.store"], Path("tench.store"), Conversion(selection=selection)).count
        4
    """

    classes: tuple[str, ...] = ()
    source: str | None = None
    rows: tuple[int | None, int | None] = (None, None)

    def numbers(self, count: int) -> range:
        """Apply `rows` to a store with `count` rows."""
        return range(count)[slice(*self.rows)]


def row_range(text: str) -> tuple[int | None, int | None]:
    """Parse "0:1000", ":1000" or "-500:" for a Selection. Raise ValueError for anything else."""
    match = _ROWS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"rows are {text!r}, expected a range such as 0:1000, :1000 or -500:")
    first, last = (int(end) if end else None for end in match.groups())
    return first, last


def labels_of(names: Sequence[str], classes: Sequence[ImageClass]) -> frozenset[int] | None:
    """Return the labels of the named classes, or None if `names` is empty. Raise ValueError for an unknown name."""
    known = [cls.name for cls in classes]
    for name in names:
        if name not in known:
            close = [other for other in known if other.startswith(name)][:3] or difflib.get_close_matches(name, known)
            first = f"the first of {len(known)} classes is {known[0]!r}"
            hint = f"did you mean {' or '.join(close)}?" if close else first
            raise ValueError(f"no class is named {name!r}; {hint}")
    wanted = set(names)
    return frozenset(label for label, name in enumerate(known) if name in wanted) if wanted else None


def matching_lines(
    path: Path, rows: range, labels: frozenset[int] | None = None, source: str | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield (row, line) for the lines of a samples.tsv that have these rows and labels and match `source`."""
    encoded_labels = None if labels is None else {b"%d" % label for label in labels}
    match = None if source is None else re.compile(fnmatch.translate(source)).match
    with reading(path) as file:
        next(file, None)
        for row, encoded in zip(rows, islice(file, rows.start, rows.stop), strict=False):
            try:
                selected = encoded_labels is None or encoded.split(b"\t", 2)[1] in encoded_labels
                if selected and (match is None or match(unescape(encoded.split(b"\t", 4)[3].decode()))):
                    yield row, encoded
            except (ValueError, IndexError):
                raise invalid_sample_error(path, row) from None


def select_lines(store: Store, selection: Selection) -> Iterator[tuple[int, bytes]]:
    """Yield (row, line of samples.tsv) for the selected rows that the store or staged part holds.

    Raises:
        ValueError: If the store has no class of a given name.
    """
    held = overlap(selection.numbers(len(store)), store.rows)
    return matching_lines(store.paths.samples, held, labels_of(selection.classes, store.classes), selection.source)
