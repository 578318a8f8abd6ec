"""How large the source pictures were, and which rows are of pictures with given names: samples.tsv, read once."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store import Store
from decodeonce.store.layout import verify_command
from decodeonce.store.table import no_sample

Sides = NDArray[np.int64]
CHUNK = 1 << 16  # lines


@dataclass(frozen=True)
class Sizes:
    """(n,) widths and heights, in pixels, of what rows were made of; `unknown` rows more say nothing of theirs.

    `boxes` rows are of a box that was cut out of a picture: its sides, then. `rows` has the first row of each picture
    that was asked for.
    """

    widths: Sides
    heights: Sides
    unknown: int
    boxes: int
    rows: dict[bytes, int]

    @property
    def shorter(self) -> Sides:
        """(n,) the shorter side of each."""
        return np.minimum(self.widths, self.heights)


def read_sizes(store: Store, wanted: Set[bytes]) -> Sizes:
    """The sizes of all rows; `wanted` are names as samples.tsv writes them. StoreError where a line is none."""
    path, found, boxes, row = store.paths.samples, dict[bytes, int](), 0, -1
    chunks, sides = [], list[tuple[int, int]]()
    with open(path, "rb") as file:
        next(file, None)
        for row, line in enumerate(file):
            try:
                _, _, _, name, width, height, box, _ = line.split(b"\t")
                sides.append(_box_sides(box) if box else (int(width), int(height)))
            except ValueError:
                raise no_sample(path, row) from None
            boxes += bool(box)
            if name in wanted:
                found.setdefault(name, row)
            if len(sides) == CHUNK:
                chunks.append(_array(sides))
                sides = []
    if row + 1 != len(store):
        raise StoreError(f"{path}: {row + 1} lines of rows, expected {len(store)}; run {verify_command(path.parent)}")
    both = np.concatenate([*chunks, _array(sides)])
    known = both[(both > 0).all(axis=1)]
    return Sizes(known[:, 0], known[:, 1], len(both) - len(known), boxes, found)


def _box_sides(box: bytes) -> tuple[int, int]:
    left, top, right, bottom = map(int, box.split(b","))
    return right - left, bottom - top


def _array(sides: list[tuple[int, int]]) -> Sides:
    try:
        return np.array(sides, np.int64).reshape(-1, 2)
    except OverflowError:
        raise StoreError("samples.tsv: sizes beyond 2**63 pixels; run `prep verify`") from None


def enlarged(sizes: Sizes, recipe: Mapping[str, Any], shape: tuple[int, int, int]) -> NDArray[np.bool_] | None:
    """(n,) whether each was enlarged to become its row; None where the recipe does not tell.

    A picture is enlarged that has fewer pixels than what is made of it, across or down: with "crop" the side that is
    left whole counts, with "pad" all of it, with "stretch" each side by itself.
    """
    height, width, _ = shape
    fit = recipe.get("fit")
    turned = recipe.get("exif") != "ignore" and height != width  # sizes are those before the turn
    if fit not in ("crop", "stretch", "pad") or turned or "resized_from" in recipe or "joined" in recipe:
        return None
    across, down = sizes.widths < width, sizes.heights < height
    return across & down if fit == "pad" else across | down
