"""Draw the boxes that a store keeps on small images of its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from decodeonce.cli.sheet import LINE, SheetFont, default_font
from decodeonce.cli.thumbnail import legible
from decodeonce.store import Store
from decodeonce.store.checks import check_file
from decodeonce.store.class_words import with_words
from decodeonce.store.manifest import BOX_COLUMNS, BOX_LABELS, Column, ImageClass

# A light line with a dark line inside it: one of them is visible on any background.
LIGHT, DARK = "#ffe14d", "#000000"


class NamedBox(NamedTuple):
    """Left, top, right and bottom of a box in pixels of its row, and its class name, "" if the store has none."""

    edges: tuple[float, ...]
    name: str


def box_columns(store: Store) -> list[Column]:
    """Return the columns of `prep build --keep-boxes` if the store has them; older stores have no `box_labels`."""
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
        self._columns = {column.name: store.column(column) for column in columns}
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


def draw_boxes(image: Image.Image, boxes: Sequence[NamedBox], shape: tuple[int, int, int]) -> None:
    """Draw the boxes of a row of `shape` on its thumbnail, each with its name unless it would cover another name."""
    if not boxes:
        return
    draw, words = ImageDraw.Draw(image), SheetFont(default_font())
    drawn = [(box.name, _pixels(box.edges, image.size, shape)) for box in boxes if all(map(math.isfinite, box.edges))]
    for _, (left, top, right, bottom) in drawn:
        if right - left > 1 and bottom - top > 1:
            draw.rectangle((left + 1, top + 1, right - 1, bottom - 1), outline=DARK)
        draw.rectangle((left, top, right, bottom), outline=LIGHT)
    taken: list[tuple[int, int, int]] = []  # left, right and top in pixels
    for name, (left, top, _, bottom) in drawn:
        text = words.fitted(legible(name, 60), image.width - 4)
        width = math.ceil(words.font.getlength(text)) + 4
        x = min(left, image.width - width)
        for y in (top - LINE, top, bottom - LINE + 1, bottom + 1):
            inside = x >= 0 and 0 <= y <= image.height - LINE
            if name and inside and all(x >= b or x + width <= a or abs(y - c) >= LINE for a, b, c in taken):
                draw.rectangle((x, y, x + width - 1, y + LINE - 1), fill=LIGHT)
                draw.text((x + 2, y + 1), text, font=words.font, fill=DARK)
                taken.append((x, x + width, y))
                break


def _pixels(edges: Sequence[float], size: tuple[int, int], shape: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return the outermost pixels of a box, left, top, right and bottom, in a thumbnail of a row of `shape`."""
    across, down = size[0] / shape[1], size[1] / shape[0]
    left, right = (min(max(x, 0), size[0] - 1) for x in (round(edges[0] * across), round(edges[2] * across) - 1))
    top, bottom = (min(max(y, 0), size[1] - 1) for y in (round(edges[1] * down), round(edges[3] * down) - 1))
    return left, top, max(left, right), max(top, bottom)
