"""What a report shows, gathered from a store before the page is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from decodeonce.cli.boxes import KeptBoxes, box_columns
from decodeonce.cli.report.broken import broken_pictures
from decodeonce.cli.report.histogram import Histogram
from decodeonce.cli.report.rejects import Rejects, gather_rejects
from decodeonce.cli.report.sizes import Sizes, read_sizes
from decodeonce.cli.rows import CheckedRows, evenly_spaced, row_thumbnail
from decodeonce.cli.thumbnail import ShownRow
from decodeonce.errors import StoreError
from decodeonce.store import Store
from decodeonce.store.table import escape
from decodeonce.store.verify import bad_files

T = TypeVar("T")

SHOWN = 64  # rows shown as images, as in `prep show`
ALL_BYTES = 2 * 10**9  # every row is read up to this size
SAMPLE_BYTES = 400 * 10**6  # of a larger store: 2,034 rows of 256x256, evenly spaced


@dataclass
class Rows:
    """What reading rows found: those to show, the histogram of the `sample` evenly spaced ones, the damaged ones.

    `checked` counts the rows whose checksum was compared: 0 if checksums.npy is damaged, then `trouble` says how.
    """

    histogram: Histogram
    sample: int
    checked: int = 0
    damaged: list[int] = field(default_factory=list)
    seen: dict[int, ShownRow] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class Facts:
    """What a report shows of a store; what is in a damaged file is None.

    `problems` says what is wrong with which file. `broken` are the images of rejects by name; None without a source.
    """

    store: Store
    problems: dict[str, str]
    counts: NDArray[np.int64] | None
    sizes: Sizes | None
    rejects: Rejects | None
    sheet: list[int]
    rows: Rows
    broken: dict[str, Image] | None

    def odd_row(self, source: str) -> ShownRow | None:
        """The row made from an unusual image, if it is here and was read."""
        row = self.sizes.rows.get(escape(source).encode()) if self.sizes else None
        return None if row is None else self.rows.seen.get(row)


def gather(store: Store, source: str | None, progress: Callable[[int], None]) -> Facts:
    """Read what the page shows.

    Args:
        store: The store.
        source: Where the images of rejects are, as for `prep build`; None to leave them out.
        progress: Called with the number of rows just read.

    Raises:
        BuildError: If `source` is unusable.
        Stopped, OSError: If something cannot be read now.
    """
    problems = dict(bad_files(store.paths, store.manifest))
    rejects = _unless_bad(store, "rejects.tsv", problems, gather_rejects)
    odd = [escape(reject.source).encode() for reject in rejects.pictured_odd] if rejects else []
    sizes = _unless_bad(store, "samples.tsv", problems, lambda opened: read_sizes(opened, set(odd)))
    labels = _unless_bad(store, "labels.npy", problems, lambda opened: opened.labels)
    counts = None if labels is None else np.bincount(labels, minlength=len(store.classes))
    broken = None
    if source is not None:
        broken = broken_pictures(store.manifest, source, rejects.pictured_rejects if rejects else [])
    sheet = list(store.rows[:SHOWN])
    shown = {*sheet, *(row for row in (sizes.rows.values() if sizes else ()) if row in store.rows)}
    boxes = None if problems.keys() & {column.file for column in box_columns(store)} else KeptBoxes(store)
    rows = _read_rows(store, shown, labels, boxes, progress)
    if rows.trouble:
        problems.setdefault("checksums.npy", rows.trouble)
    return Facts(store, problems, counts, sizes, rejects, sheet, rows, broken)


def _read_rows(
    store: Store,
    shown: set[int],
    labels: NDArray[np.int64] | None,
    boxes: KeptBoxes | None,
    progress: Callable[[int], None],
) -> Rows:
    """Read the sample and the rows to show, each once; damaged rows are left out of the histogram."""
    sample = set(store.rows)
    if len(sample) * store.manifest.row_bytes > ALL_BYTES:
        sample = set(evenly_spaced(store.rows, max(1, SAMPLE_BYTES // store.manifest.row_bytes)))
    checked = CheckedRows(store)
    found = Rows(Histogram(store.manifest.shape[2]), len(sample), trouble=checked.trouble)
    for row in sorted(sample | shown):
        pixels, damaged = checked.read(row)
        found.checked += not checked.trouble
        if damaged:
            found.damaged.append(row)
        elif row in sample and pixels is not None:
            found.histogram.add(pixels)
        if row in shown:
            cls = None if labels is None else store.classes[labels[row]]
            found.seen[row] = ShownRow(row, row_thumbnail(pixels, boxes.of(row) if boxes else ()), cls, damaged)
        progress(1)
    return found


def _unless_bad(store: Store, name: str, problems: dict[str, str], read: Callable[[Store], T]) -> T | None:
    """What `read` returns; None if the file is damaged or cannot be parsed."""
    if name in problems:
        return None
    try:
        return read(store)
    except StoreError as error:  # its digest is right, its content is not
        problems[name] = str(error)
        return None
