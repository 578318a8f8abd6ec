"""Gather what a report shows from a store, before the page is rendered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from decodeonce.cli.boxes import KeptBoxes, box_columns
from decodeonce.cli.report.histogram import Histogram
from decodeonce.cli.report.rejected_images import decode_rejected_images
from decodeonce.cli.report.rejects import Rejects, gather_rejects
from decodeonce.cli.report.sizes import Sizes, read_sizes
from decodeonce.cli.rows import CheckedRows, evenly_spaced, row_thumbnail
from decodeonce.cli.thumbnail import ShownRow
from decodeonce.errors import StoreError
from decodeonce.store import Store
from decodeonce.store.table import escape
from decodeonce.store.verify import bad_files

T = TypeVar("T")

FIRST_ROWS = 64  # shown as images, as in `prep show`
ALL_BYTES = 2 * 10**9  # every row of a store of up to this size is read
SAMPLE_BYTES = 400 * 10**6  # read from a larger store: 2,034 evenly spaced rows of 256x256


@dataclass
class Rows:
    """The rows that were read: `shown` as images, `damaged` ones, and a histogram of `sample` evenly spaced rows.

    `checked` is the number of rows whose checksum was compared. It is 0 if checksums.npy is damaged; `trouble` is then
    the error.
    """

    histogram: Histogram
    sample: int
    checked: int = 0
    damaged: list[int] = field(default_factory=list)
    shown: dict[int, ShownRow] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class Facts:
    """What a report shows. The attributes read from a damaged file are None.

    `problems` maps names of damaged files to what is wrong. `rejected_images` maps names to images; it is None without
    a source. `first_rows` are the numbers of the rows shown in the section Images.
    """

    store: Store
    problems: dict[str, str]
    counts: NDArray[np.int64] | None
    sizes: Sizes | None
    rejects: Rejects | None
    first_rows: list[int]
    rows: Rows
    rejected_images: dict[str, Image] | None

    def unusual_row(self, source: str) -> ShownRow | None:
        """Return the row made from an unusual image, or None if that row was not read or is not here."""
        row = self.sizes.rows.get(escape(source).encode()) if self.sizes else None
        return None if row is None else self.rows.shown.get(row)


def gather(store: Store, source: str | None, progress: Callable[[int], None]) -> Facts:
    """Read what the page shows.

    Args:
        store: The store.
        source: Source of the build, as for `prep build`, which has the rejected images; None to leave them out.
        progress: Called with the number of rows just read.

    Raises:
        BuildError: If `source` is unusable.
        Stopped, OSError: If a file cannot be read now.
    """
    problems = dict(bad_files(store.paths, store.manifest))
    rejects = _unless_bad(store, "rejects.tsv", problems, gather_rejects)
    unusual = {escape(reject.source).encode() for reject in rejects.shown_unusual} if rejects else set[bytes]()
    sizes = _unless_bad(store, "samples.tsv", problems, lambda opened: read_sizes(opened, unusual))
    labels = _unless_bad(store, "labels.npy", problems, lambda opened: opened.labels)
    counts = None if labels is None else np.bincount(labels, minlength=len(store.classes))
    rejected = None
    if source is not None:
        rejected = decode_rejected_images(store.manifest, source, rejects.shown_rejects if rejects else [])
    first_rows = list(store.rows[:FIRST_ROWS])
    shown = {*first_rows, *(row for row in (sizes.rows.values() if sizes else ()) if row in store.rows)}
    boxes = None if problems.keys() & {column.file for column in box_columns(store)} else KeptBoxes(store)
    rows = _read_rows(store, shown, labels, boxes, progress)
    if rows.trouble:
        problems.setdefault("checksums.npy", rows.trouble)
    return Facts(store, problems, counts, sizes, rejects, first_rows, rows, rejected)


def _read_rows(
    store: Store,
    shown: set[int],
    labels: NDArray[np.int64] | None,
    boxes: KeptBoxes | None,
    progress: Callable[[int], None],
) -> Rows:
    """Read the sample and the rows to show, each row once. Damaged rows are left out of the histogram."""
    sample = set(store.rows)
    if len(sample) * store.manifest.row_bytes > ALL_BYTES:
        sample = set(evenly_spaced(store.rows, max(1, SAMPLE_BYTES // store.manifest.row_bytes)))
    checked = CheckedRows(store)
    rows = Rows(Histogram(store.manifest.shape[2]), len(sample), trouble=checked.problem)
    for row in sorted(sample | shown):
        pixels, damaged = checked.read(row)
        rows.checked += not checked.problem
        if damaged:
            rows.damaged.append(row)
        elif row in sample and pixels is not None:
            rows.histogram.add(pixels)
        if row in shown:
            cls = None if labels is None else store.classes[labels[row]]
            rows.shown[row] = ShownRow(row, row_thumbnail(pixels, boxes.of(row) if boxes else ()), cls, damaged)
        progress(1)
    return rows


def _unless_bad(store: Store, name: str, problems: dict[str, str], read: Callable[[Store], T]) -> T | None:
    """Return `read(store)`, or None if the file is damaged or cannot be parsed."""
    if name in problems:
        return None
    try:
        return read(store)
    except StoreError as error:  # the file matches its digest, but its content is malformed
        problems[name] = str(error)
        return None
