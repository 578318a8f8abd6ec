"""Gather what a report shows from a store, before the page is rendered."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from decodeonce.cli.drawing import ShownRow, thumbnail
from decodeonce.cli.rows import CheckedRows, KeptBoxes, box_columns, evenly_spaced
from decodeonce.errors import StoreError
from decodeonce.store import Reject, Store
from decodeonce.store.table import read_rejects
from decodeonce.store.verify import bad_files

T = TypeVar("T")

FIRST_ROWS = 64  # shown as images, as in `prep show`
ALL_BYTES = 2 * 10**9  # every row of a store of up to this size is read
SAMPLE_BYTES = 400 * 10**6  # read from a larger store: 2,034 evenly spaced rows of 256x256
MAX_LISTED = 500  # lines of rejects.tsv
MAX_SHOWN, MAX_PER_KIND = 24, 4  # unusual images, in total and per kind of reason
KEPT = "kept"  # the action for an unusual image, which is in the store
LEVELS = 256


@dataclass
class Rejects:
    """The lines of rejects.tsv: `counts` maps (action, kind of reason) to a number of lines, `listed` are the first.

    `shown` are the unusual images that the page shows.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    listed: list[Reject] = field(default_factory=list)
    shown: list[Reject] = field(default_factory=list)

    @property
    def unusual(self) -> int:
        """The number of unusual images; they are in the store."""
        return sum(number for (action, _), number in self.counts.items() if action == KEPT)

    @property
    def rejected(self) -> int:
        """The number of images that are not in the store."""
        return self.counts.total() - self.unusual


@dataclass(frozen=True)
class Sizes:
    """Known sizes, float64 (n, 2) as width and height, of the images or boxes that rows were made from.

    `unknown` rows have no size, `boxes` rows were made from a box. `rows` maps each unusual image to its first row.
    """

    sides: NDArray[np.float64]
    unknown: int
    boxes: int
    rows: dict[str, int]


@dataclass
class Rows:
    """The rows that were read: `shown` as images, `damaged` ones, and how often each level occurs, int64 (C, 256).

    `counted` rows of an evenly spaced `sample` are in `levels`. `checked` is the number of rows whose checksum was
    compared. It is 0 if checksums.npy is damaged; `trouble` is then the error.
    """

    levels: NDArray[np.int64]
    sample: int
    trouble: str
    counted: int = 0
    checked: int = 0
    damaged: list[int] = field(default_factory=list)
    shown: dict[int, ShownRow] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What a report shows. The attributes read from a damaged file are None.

    `problems` maps names of damaged files to what is wrong. `first_rows` are the rows shown in the section Images.
    """

    store: Store
    problems: dict[str, str]
    counts: NDArray[np.int64] | None
    sizes: Sizes | None
    rejects: Rejects | None
    first_rows: list[int]
    rows: Rows

    def unusual_row(self, source: str) -> ShownRow | None:
        """Return the row made from an unusual image, or None if that row was not read or is not here."""
        row = self.sizes.rows.get(source) if self.sizes else None
        return None if row is None else self.rows.shown.get(row)


def gather(store: Store, progress: Callable[[int], None]) -> Facts:
    """Read what the page shows; `progress` is called with the number of rows just read."""
    problems = dict(bad_files(store.paths, store.manifest))
    rejects = _unless_bad("rejects.tsv", problems, lambda: read_all_rejects(store))
    unusual = {reject.source for reject in rejects.shown} if rejects else set[str]()
    sizes = _unless_bad("samples.tsv", problems, lambda: read_sizes(store, unusual))
    labels = _unless_bad("labels.npy", problems, lambda: store.labels)
    counts = None if labels is None else np.bincount(labels, minlength=len(store.classes))
    first_rows = list(store.rows[:FIRST_ROWS])
    shown = {*first_rows, *(row for row in (sizes.rows.values() if sizes else ()) if row in store.rows)}
    boxes = None if problems.keys() & {column.file for column in box_columns(store)} else KeptBoxes(store)
    rows = _read_rows(store, shown, labels, boxes, progress)
    if rows.trouble:
        problems.setdefault("checksums.npy", rows.trouble)
    return Facts(store, problems, counts, sizes, rejects, first_rows, rows)


def _unless_bad(name: str, problems: dict[str, str], read: Callable[[], T]) -> T | None:
    """Return `read()`, or None if the file is damaged or cannot be parsed."""
    if name in problems:
        return None
    try:
        return read()
    except (StoreError, OverflowError, ValueError) as error:  # its content is malformed, although its digest matches
        problems[name] = str(error)
        return None


def read_all_rejects(store: Store) -> Rejects:
    """Count the lines of rejects.tsv, and choose those to show."""
    rejects = Rejects()
    for reject in read_rejects(store.paths.rejects):
        kind = (reject.action, reject.reason.partition(":")[0])  # "garbled: Corrupt JPEG data" is of kind "garbled"
        rejects.counts[kind] += 1
        if len(rejects.listed) < MAX_LISTED:
            rejects.listed.append(reject)
        if reject.action == KEPT and rejects.counts[kind] <= MAX_PER_KIND and len(rejects.shown) < MAX_SHOWN:
            rejects.shown.append(reject)
    return rejects


def read_sizes(store: Store, wanted: set[str]) -> Sizes:
    """Read the sizes of all rows, and find the first rows of the `wanted` sources."""
    sides, boxes, rows = array("d"), 0, dict[str, int]()
    for sample in store.samples:
        left, top, right, bottom = (
            map(int, sample.box.split(",")) if sample.box else (0, 0, sample.width, sample.height)
        )
        sides.extend((right - left, bottom - top))
        boxes += bool(sample.box)
        if sample.source in wanted:
            rows.setdefault(sample.source, sample.row)
    both = np.frombuffer(sides).reshape(-1, 2)
    known = both[(both > 0).all(axis=1)]
    return Sizes(known, len(both) - len(known), boxes, rows)


def _read_rows(
    store: Store,
    shown: set[int],
    labels: NDArray[np.int64] | None,
    boxes: KeptBoxes | None,
    progress: Callable[[int], None],
) -> Rows:
    """Read the sample and the rows to show, each row once. Damaged rows are left out of the levels."""
    sample = set(store.rows)
    if len(sample) * store.manifest.row_bytes > ALL_BYTES:
        sample = set(evenly_spaced(store.rows, max(1, SAMPLE_BYTES // store.manifest.row_bytes)))
    checked, channels = CheckedRows(store), store.manifest.shape[2]
    rows = Rows(np.zeros((channels, LEVELS), np.int64), len(sample), checked.problem)
    for row in sorted(sample | shown):
        pixels, damaged = checked.read(row)
        rows.checked += not checked.problem
        if damaged:
            rows.damaged.append(row)
        elif row in sample and pixels is not None:
            rows.counted += 1
            for channel in range(channels):
                # Pillow takes 0.1 ms per row of 256x256, and np.bincount 1.5 ms.
                rows.levels[channel] += np.array(Image.fromarray(pixels[..., channel]).histogram())
        if row in shown:
            cls = None if labels is None else store.classes[labels[row]]
            rows.shown[row] = ShownRow(row, thumbnail(pixels, boxes.of(row) if boxes else ()), cls, damaged)
        progress(1)
    return rows
