"""What a report tells, gathered from a store: small files whole, rows as many as are worth reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from decodeonce.cli.report.broken import broken_pictures
from decodeonce.cli.report.histogram import Histogram
from decodeonce.cli.report.rejects import ODD, Rejects, gather_rejects
from decodeonce.cli.report.sizes import Sizes, read_sizes
from decodeonce.cli.rows import CheckedRows, evenly_spaced
from decodeonce.cli.thumbnail import Shown, thumbnail
from decodeonce.errors import StoreError
from decodeonce.store import Store
from decodeonce.store.table import escape
from decodeonce.store.verify import bad_files

T = TypeVar("T")

SHOWN = 64  # rows of the contact sheet, as in `prep show`
ALL_BYTES = 2 * 10**9  # rows of a store up to this are all read
SAMPLE_BYTES = 400 * 10**6  # of a larger one so many, evenly spaced: 2,034 of 256x256


@dataclass
class Rows:
    """What reading rows gave: those shown by their number, the histogram of the sample, the damaged ones.

    `checked` rows were read and compared, 0 where checksums.npy is damaged; `sample` of them are evenly spaced.
    """

    histogram: Histogram
    sample: int
    checked: int = 0
    damaged: list[int] = field(default_factory=list)
    seen: dict[int, Shown] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class Facts:
    """A store as a report tells of it; `problems` has what is wrong with which of its files.

    What cannot be read because its file is damaged is None. `broken` are pictures of rejects by their names, None where
    nobody said where these are.
    """

    store: Store
    problems: dict[str, str]
    counts: NDArray[np.int64] | None
    sizes: Sizes | None
    rejects: Rejects | None
    sheet: list[int]
    rows: Rows
    broken: dict[str, bytes] | None

    def odd_row(self, source: str) -> Shown | None:
        """The row of an odd picture, if it is here and was looked at."""
        row = self.sizes.rows.get(escape(source).encode()) if self.sizes else None
        return None if row is None else self.rows.seen.get(row)


def gather(store: Store, source: str | None, progress: Callable[[int], None]) -> Facts:
    """Read what the page tells; `source` is where the pictures of rejects are, `progress` is told numbers of rows.

    Raises BuildError where `source` is of no use, Stopped, OSError.
    """
    problems = dict(bad_files(store.paths, store.manifest))
    rejects = _unless_bad(store, "rejects.tsv", problems, gather_rejects)
    pictured = rejects.pictured if rejects else []
    odd = {escape(reject.source).encode() for reject in pictured if reject.action == ODD}
    sizes = _unless_bad(store, "samples.tsv", problems, lambda opened: read_sizes(opened, odd))
    labels = _unless_bad(store, "labels.npy", problems, lambda opened: opened.labels)
    counts = None if labels is None else np.bincount(labels, minlength=len(store.classes))
    broken = None
    if source is not None:
        broken = broken_pictures(store.manifest, source, [reject for reject in pictured if reject.action != ODD])
    sheet = list(store.rows[:SHOWN])
    looked_at = {*sheet, *(row for row in (sizes.rows.values() if sizes else ()) if row in store.rows)}
    rows = _read_rows(store, looked_at, labels, progress)
    if rows.trouble:
        problems.setdefault("checksums.npy", rows.trouble)
    return Facts(store, problems, counts, sizes, rejects, sheet, rows, broken)


def sampled(store: Store) -> list[int]:
    """The rows whose pixels are counted: all, or evenly spaced ones of a large store."""
    row_bytes, rows = store.manifest.row_bytes, store.rows
    all_of_it = len(rows) * row_bytes <= ALL_BYTES
    return list(rows) if all_of_it else evenly_spaced(rows, max(1, SAMPLE_BYTES // row_bytes))


def _read_rows(
    store: Store, looked_at: set[int], labels: NDArray[np.int64] | None, progress: Callable[[int], None]
) -> Rows:
    """Read the sample and the rows that are looked at, each once; damaged rows are in no histogram."""
    sample, checked = set(sampled(store)), CheckedRows(store)
    found = Rows(Histogram(store.manifest.shape[2]), len(sample), trouble=checked.trouble)
    for row in sorted(sample | looked_at):
        pixels, damaged = checked.read(row)
        found.checked += not checked.trouble
        if damaged:
            found.damaged.append(row)
        elif row in sample and pixels is not None:
            found.histogram.add(pixels)
        if row in looked_at:
            cls = None if labels is None else store.classes[labels[row]]
            found.seen[row] = Shown(row, None if pixels is None else thumbnail(pixels), cls, damaged)
        progress(1)
    return found


def _unless_bad(store: Store, name: str, problems: dict[str, str], read: Callable[[Store], T]) -> T | None:
    """What `read` makes of a file, None where that is damaged or no such file."""
    if name in problems:
        return None
    try:
        return read(store)
    except StoreError as error:  # signed as it is
        problems[name] = str(error)
        return None
