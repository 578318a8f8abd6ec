"""Rows of stores as rows of another one: the same, or resized."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import Entry, Row
from decodeonce.prep.pixels.decode import FILTERS
from decodeonce.prep.recipe import Recipe


class StoredRowMaker:
    """Makes rows of the rows of stores: the same, or resized; what is known of their pictures goes with them."""

    def __init__(self, inputs: Sequence[StoreRows], recipe: Recipe) -> None:
        height, width, _ = inputs[0].manifest.shape
        self._inputs, self._size = inputs, (width, height)
        self._new_size, self._filter = (recipe.width, recipe.height), FILTERS[recipe.filter]

    def row(self, data: bytes, entry: Entry) -> Row:
        """The row of the bytes of a stored one."""
        sample = self._inputs[entry.unit].sample(entry.place)
        if self._new_size != self._size:
            image = Image.frombuffer("RGB", self._size, data, "raw", "RGB", 0, 1)
            data = image.resize(self._new_size, self._filter).tobytes("raw", "RGB")
        return Row(data, sample.width, sample.height, "", sample.digest, box=sample.box)
