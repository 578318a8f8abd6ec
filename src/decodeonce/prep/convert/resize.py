"""Rows of stores as rows of another one: the same, or resized."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import Entry, Row
from decodeonce.prep.pixels.decode import FILTERS, counts
from decodeonce.prep.recipe import Recipe


class StoredRowMaker:
    """Makes rows of the rows of stores: the same, or resized; what is known of their pictures goes with them."""

    def __init__(self, inputs: Sequence[StoreRows], recipe: Recipe) -> None:
        height, width, _ = inputs[0].manifest.shape
        self._inputs, self._size = inputs, (width, height)
        self._new_size, self._filter = (recipe.width, recipe.height), FILTERS[recipe.filter]
        self.histogram: NDArray[np.int64] = np.zeros((3, 256), np.int64)

    def row(self, data: bytes, entry: Entry) -> Row:
        """The row of the bytes of a stored one."""
        sample = self._inputs[entry.unit].sample(entry.place)
        image = Image.frombuffer("RGB", self._size, data, "raw", "RGB", 0, 1)
        if self._new_size != self._size:
            image = image.resize(self._new_size, self._filter)
            data = image.tobytes("raw", "RGB")
        self.histogram += counts(image)
        return Row(data, sample.width, sample.height, "", sample.digest, box=sample.box)
