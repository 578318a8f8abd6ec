"""Rows to be looked at: which of a store's are meant, and each with whether it is what was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from decodeonce.cli.boxes import KeptBoxes, NamedBox, draw_boxes
from decodeonce.cli.thumbnail import ShownRow, thumbnail
from decodeonce.errors import StoreError
from decodeonce.formatting import counted
from decodeonce.splitmix import GOLDEN, mix
from decodeonce.store import Store
from decodeonce.store.checks import check_file
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import repair_advice
from decodeonce.store.part import rows_text
from decodeonce.store.verify import read_rows, row_ranges

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
TOLD = 20  # runs of damaged rows; `prep verify --json` names them all


def draw_rows(rows: Iterable[int], count: int, seed: int) -> list[int]:
    """`count` of the rows, drawn without repeats, in their order: the same for a seed on every machine, for ever."""
    numbers = np.fromiter(rows, np.uint64)
    start = mix((np.array([seed], np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))  # mix(0) is 0
    keys = mix(numbers ^ start)  # a bijection: no two are equal
    return sorted(int(row) for row in numbers[np.argsort(keys)[:count]])


def evenly_spaced(rows: range, count: int) -> list[int]:
    """`count` of the rows, or all where there are no more, as far from each other as they can be."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


class CheckedRows:
    """Reads rows one by one and checks each; `trouble` says why none can be checked, "" where all can.

    Rows are read, not mapped: what a disk cannot read is a damaged row, and not the end of this process.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.trouble = ""
        try:
            check_file(store.paths.checksums, store.manifest.files[store.paths.checksums.name])
            self._checksums = store.checksums
        except (FileNotFoundError, StoreError) as error:
            self.trouble = str(error)

    def read(self, row: int) -> tuple[Pixels | None, bool]:
        """(H, W, C) of a row, None where it cannot be read; and whether it is damaged, as far as that is known."""
        manifest = self._store.manifest
        [data] = read_rows(self._store, range(row, row + 1))
        if data is None:
            return None, True
        damaged = not self.trouble and row_checksum(data) != int(self._checksums[row])
        return np.frombuffer(data, np.uint8).reshape(manifest.shape), damaged


def shown_rows(store: Store, rows: Iterable[int], checked: CheckedRows) -> Iterator[ShownRow]:
    """Each row as it is shown; StoreError where the labels, by which classes are known, or its boxes are damaged."""
    boxes = KeptBoxes(store)
    for row in rows:
        pixels, damaged = checked.read(row)
        yield ShownRow(row, row_thumbnail(pixels, boxes.of(row)), store.classes[store.labels[row]], damaged)


def row_thumbnail(pixels: Pixels | None, boxes: Sequence[NamedBox]) -> Image | None:
    """A row as a small picture with its boxes; None if it cannot be read."""
    if pixels is None:
        return None
    picture = thumbnail(pixels)
    draw_boxes(picture, boxes, pixels.shape)
    return picture


def damage_messages(store: Store, damaged: list[int], trouble: str) -> Iterator[str]:
    """A sentence with the next step where rows are damaged, or cannot be checked."""
    if trouble:
        yield f"{trouble}; until then no row can be checked"
    if damaged:
        told = ", ".join(rows_text(range(first, last + 1)) for first, last in row_ranges(damaged)[:TOLD])
        more = len(row_ranges(damaged)) - TOLD
        told += f" and {counted(more, 'more run', 'more runs')} of rows" if more > 0 else ""
        what = f"{told} {'is' if len(damaged) == 1 else 'are'} not what was written"
        yield f"{store.paths.root}: {what}; {repair_advice(store.paths.manifest)}"
