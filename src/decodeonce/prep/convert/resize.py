"""Make rows of a new store from rows of finished stores, resized if the sizes differ."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import Entry, Row
from decodeonce.prep.pixels.decode import FILTERS
from decodeonce.prep.recipe import Recipe


class StoredRowMaker:
    """Turn stored rows into rows of the recipe's size; original size, digest and box come from samples.tsv."""

    def __init__(self, inputs: Sequence[StoreRows], recipe: Recipe) -> None:
        height, width, _ = inputs[0].manifest.shape
        self._inputs, self._size = inputs, (width, height)
        self._new_size, self._filter = (recipe.width, recipe.height), FILTERS[recipe.filter]

    def row(self, data: bytes, entry: Entry) -> Row:
        """Return the new row for the bytes of a stored row."""
        sample = self._inputs[entry.unit].sample(entry.place)
        if self._new_size != self._size:
            image = Image.frombuffer("RGB", self._size, data, "raw", "RGB", 0, 1)
            data = image.resize(self._new_size, self._filter).tobytes("raw", "RGB")
        return Row(data, sample.width, sample.height, "", sample.digest, box=sample.box)
