"""Read the sizes of the source images, and the rows of given images, in one pass over samples.tsv."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store import Store
from decodeonce.store.layout import verify_command
from decodeonce.store.table import invalid_sample_error

Sides = NDArray[np.int64]
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
CHUNK = 1 << 16  # lines


@dataclass(frozen=True)
class Sizes:
    """Widths and heights, int64 (n,) in pixels, of the images or boxes that rows were made from.

    `unknown` is the number of further rows, whose size is unknown. `boxes` is the number of rows made from a box of an
    image. `rows` maps each requested name to its first row.
    """

    widths: Sides
    heights: Sides
    unknown: int
    boxes: int
    rows: dict[bytes, int]

    @property
    def known(self) -> int:
        """The number of rows with a size."""
        return len(self.widths)

    @property
    def shorter(self) -> Sides:
        """The shorter sides, int64 (n,) in pixels."""
        return np.minimum(self.widths, self.heights)

    def quantiles(self) -> dict[str, list[str]]:
        """Return the values of each measure at QUANTILES, as text."""
        measures = {
            "width": self.widths,
            "height": self.heights,
            "shorter side": self.shorter,
            "width / height": self.widths / self.heights,
        }
        return {
            name: [_short(value) for value in np.quantile(values, QUANTILES, method="inverted_cdf")]
            for name, values in measures.items()
        }


def _short(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def read_sizes(store: Store, wanted: Set[bytes]) -> Sizes:
    """Read the sizes of all rows, and find the rows of the `wanted` names, which are escaped as in samples.tsv.

    Raises StoreError if a line is malformed.
    """
    path, rows, boxes, row = store.paths.samples, dict[bytes, int](), 0, -1
    chunks, sides = [], list[tuple[int, int]]()
    with open(path, "rb") as file:
        next(file, None)
        for row, line in enumerate(file):
            try:
                _, _, _, name, width, height, box, _ = line.split(b"\t")
                sides.append(_box_sides(box) if box else (int(width), int(height)))
            except ValueError:
                raise invalid_sample_error(path, row) from None
            boxes += bool(box)
            if name in wanted:
                rows.setdefault(name, row)
            if len(sides) == CHUNK:
                chunks.append(_array(sides))
                sides = []
    if row + 1 != len(store):
        raise StoreError(f"{path}: expected {len(store)} rows, got {row + 1}; run {verify_command(path.parent)}")
    both = np.concatenate([*chunks, _array(sides)])
    known = both[(both > 0).all(axis=1)]
    return Sizes(known[:, 0], known[:, 1], len(both) - len(known), boxes, rows)


def _box_sides(box: bytes) -> tuple[int, int]:
    left, top, right, bottom = map(int, box.split(b","))
    return right - left, bottom - top


def _array(sides: list[tuple[int, int]]) -> Sides:
    try:
        return np.array(sides, np.int64).reshape(-1, 2)
    except OverflowError:
        raise StoreError("samples.tsv: sizes must be below 2**63 pixels; run `prep verify`") from None


def enlarged(sizes: Sizes, recipe: Mapping[str, Any], shape: tuple[int, int, int]) -> NDArray[np.bool_] | None:
    """Return whether each image was enlarged to become its row, bool (n,); None if that cannot be known.

    "crop" and "stretch" enlarge an image if either side is shorter than the row's; "pad", if both sides are.
    """
    height, width, _ = shape
    fit = recipe.get("fit")
    rotated = recipe.get("exif") != "ignore" and height != width  # samples.tsv has sizes before the rotation
    if fit not in ("crop", "stretch", "pad") or rotated or "resized_from" in recipe or "joined" in recipe:
        return None
    narrower, lower = sizes.widths < width, sizes.heights < height
    return narrower & lower if fit == "pad" else narrower | lower
