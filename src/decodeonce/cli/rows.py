"""Read and check single rows, with their boxes, for `prep show` and `prep report`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from decodeonce.cli.drawing import NamedBox, ShownRow, thumbnail, with_paired
from decodeonce.errors import StoreError
from decodeonce.store import Store
from decodeonce.store.checks import check_file, repair_advice
from decodeonce.store.class_words import with_words
from decodeonce.store.hashing import GOLDEN, mix, row_checksum
from decodeonce.store.manifest import BOX_COLUMNS, BOX_LABELS, Column, ImageClass
from decodeonce.store.pixels import Pixels
from decodeonce.store.verify import ranges_text, read_rows, row_ranges


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

    def read(self, row: int) -> tuple[list[Pixels], bool]:
        """Return the arrays of a row, and whether it is known to be damaged.

        The first array is the image, (H, W, C). The others are its masks, (H, W), and second images, (H, W, 3). If the
        row cannot be read, there are none.
        """
        [data] = read_rows(self._store, range(row, row + 1))
        if data is None:
            return [], True
        damaged = not self.problem and row_checksum(data) != int(self._checksums[row])
        return [*self._store.manifest.arrays(np.frombuffer(data, np.uint8)).values()], damaged


def box_columns(store: Store) -> list[Column]:
    """Return the columns of `prep build --keep-boxes` if the store has them. Other writers may omit `box_labels`."""
    found = {column.name: column for column in store.manifest.columns if column.name in BOX_COLUMNS}
    kinds = {name: (column.dtype, column.shape[1:]) for name, column in found.items()}
    kept = kinds.get("boxes") == ("<f4", (4,)) and kinds.get("box_count") == ("<i4", ())
    return list(found.values()) if kept else []


class KeptBoxes:
    """The boxes of the rows of a store, if it keeps boxes. Raises StoreError if one of their columns is damaged."""

    def __init__(self, store: Store) -> None:
        columns = box_columns(store)
        for column in columns:
            check_file(store.paths.root / column.file, store.manifest.files[column.file])
        self._columns = {column.name: store.column(column.name) for column in columns}
        classes = (*with_words(tuple(map(ImageClass, store.box_classes))), *store.classes)
        words = {cls.name: cls.description.partition(",")[0] for cls in classes if cls.description}
        self._names = [words.get(name, name) for name in store.box_classes]

    def of(self, row: int) -> list[NamedBox]:
        """Return the boxes of a row."""
        if not self._columns:
            return []
        edges = self._columns["boxes"][row][: max(0, int(self._columns["box_count"][row]))].tolist()
        labels = self._columns[BOX_LABELS][row].tolist() if self._names else [-1] * len(edges)
        named = zip(edges, labels, strict=False)
        return [NamedBox(tuple(box), self._names[label] if label >= 0 else "") for box, label in named]


def shown_rows(store: Store, rows: Iterable[int], checked: CheckedRows) -> Iterator[ShownRow]:
    """Yield each row as a thumbnail with its class. Raises StoreError if the labels or boxes are damaged."""
    boxes = KeptBoxes(store)
    for row in rows:
        pixels, damaged = checked.read(row)
        image = thumbnail(with_paired(pixels), boxes.of(row))
        yield ShownRow(row, image, store.classes[store.labels[row]], damaged)


def damage_messages(store: Store, damaged: list[int], problem: str) -> Iterator[str]:
    """Yield a message with the next step if rows are damaged or cannot be checked."""
    if problem:
        yield f"{problem}; until then, no row can be checked"
    if damaged:
        rows = ranges_text(row_ranges(damaged))
        yield f"{store.paths.root}: {rows}: damaged; {repair_advice(store.paths.manifest)}"
