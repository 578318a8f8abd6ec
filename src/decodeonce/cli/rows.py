"""Read, check and draw single rows for `prep show` and `prep report`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from decodeonce.cli.boxes import KeptBoxes, NamedBox, draw_boxes
from decodeonce.cli.thumbnail import ShownRow, thumbnail
from decodeonce.errors import StoreError
from decodeonce.formatting import counted
from decodeonce.splitmix import GOLDEN, mix
from decodeonce.store import Store
from decodeonce.store.checks import check_file
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import repair_advice
from decodeonce.store.manifest import rows_text
from decodeonce.store.verify import read_rows, row_ranges

Pixels = NDArray[np.uint8]
MOST_RANGES = 20  # of damaged rows that a message names; `prep verify --json` names all of them


def draw_rows(rows: Iterable[int], count: int, seed: int) -> list[int]:
    """Draw `count` rows at random, without repeats; return them sorted. A seed always gives the same rows."""
    numbers = np.fromiter(rows, np.uint64)
    start = mix((np.array([seed], np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))  # mix(0) is 0
    keys = mix(numbers ^ start)  # a bijection: no two are equal
    return sorted(int(row) for row in numbers[np.argsort(keys)[:count]])


def evenly_spaced(rows: range, count: int) -> list[int]:
    """Return `count` evenly spaced rows, or all rows if there are fewer."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


class CheckedRows:
    """Read and check single rows. `problem` says why no row can be checked; it is "" if all can.

    Rows are not memory-mapped: a row that the disk cannot read counts as damaged, and does not kill this process.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.problem = ""
        try:
            check_file(store.paths.checksums, store.manifest.files[store.paths.checksums.name])
            self._checksums = store.checksums
        except (FileNotFoundError, StoreError) as error:
            self.problem = str(error)

    def read(self, row: int) -> tuple[Pixels | None, bool]:
        """Return the (H, W, C) pixels of a row, or None if it cannot be read, and whether it is known to be damaged."""
        manifest = self._store.manifest
        [data] = read_rows(self._store, range(row, row + 1))
        if data is None:
            return None, True
        damaged = not self.problem and row_checksum(data) != int(self._checksums[row])
        return np.frombuffer(data, np.uint8).reshape(manifest.shape), damaged


def shown_rows(store: Store, rows: Iterable[int], checked: CheckedRows) -> Iterator[ShownRow]:
    """Yield each row as a thumbnail with its class. Raises StoreError if the labels or boxes are damaged."""
    boxes = KeptBoxes(store)
    for row in rows:
        pixels, damaged = checked.read(row)
        yield ShownRow(row, row_thumbnail(pixels, boxes.of(row)), store.classes[store.labels[row]], damaged)


def row_thumbnail(pixels: Pixels | None, boxes: Sequence[NamedBox]) -> Image.Image | None:
    """Return a row as a small image with its boxes, or None if it cannot be read."""
    if pixels is None:
        return None
    image = thumbnail(pixels)
    draw_boxes(image, boxes, pixels.shape)
    return image


def damage_messages(store: Store, damaged: list[int], problem: str) -> Iterator[str]:
    """Yield a message with the next step if rows are damaged or cannot be checked."""
    if problem:
        yield f"{problem}; until then, no row can be checked"
    if damaged:
        ranges = row_ranges(damaged)
        rows = ", ".join(rows_text(range(first, last + 1)) for first, last in ranges[:MOST_RANGES])
        more = len(ranges) - MOST_RANGES
        rows += f" and {counted(more, 'more range')} of rows" if more > 0 else ""
        what = f"{rows} {'is' if len(damaged) == 1 else 'are'} damaged"
        yield f"{store.paths.root}: {what}; {repair_advice(store.paths.manifest)}"
