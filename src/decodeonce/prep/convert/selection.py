"""Which rows of stores that follow each other are converted, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.prep.convert.merge import joined_classes
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import name_bytes
from decodeonce.store.select import Selection, labels_of, selected_lines

SORTS = ("class", "source")
Place = tuple[int, int]  # the number of a store, a row of it
Places = NDArray[np.int64]  # (n, 2)


class Chosen:
    """The rows of `stores` that are selected, by their numbers, which count through all stores, or sorted.

    `sort` "class" orders them by label, "source" by the bytes of their pictures' names; equal ones stay in order.
    """

    def __init__(self, stores: Sequence[StoreRows], selection: Selection, sort: str | None) -> None:
        self._stores, self._selection, self._sort = stores, selection, sort
        self.classes, self.labels = joined_classes([rows.manifest.classes for rows in stores])
        self._firsts = list(accumulate((len(rows.store) for rows in stores), initial=0))
        self._numbers = selection.numbers(self._firsts[-1])
        self._wanted = labels_of(selection.classes, self.classes)

    @property
    def whole(self) -> bool:
        """Whether every row is taken, whatever it is."""
        everything = len(self._numbers) == self._firsts[-1]
        return everything and not self._selection.classes and self._selection.source is None

    def facts(self, shuffle_seed: int | None) -> dict[str, Any]:
        """What a recipe says of it: empty where all rows are taken in their order."""
        facts: dict[str, Any] = {}
        if self._selection.classes:
            facts["classes"] = list(self._selection.classes)
        if self._selection.source is not None:
            facts["source"] = self._selection.source
        if len(self._numbers) != self._firsts[-1]:
            facts["rows"] = [self._numbers.start, self._numbers.stop]
        asked = {"sort": self._sort, "shuffle_seed": shuffle_seed}
        return {**facts, **{name: value for name, value in asked.items() if value is not None}}

    def __iter__(self) -> Iterator[Place]:
        """Their places in the order that is asked for; sorting holds them, and their names."""
        if self._sort is None:
            return self.unsorted()
        places = np.fromiter(chain.from_iterable(self.unsorted()), np.int64).reshape(-1, 2)
        if self._sort == "class":
            order: Iterable[int] = np.argsort(self._labels(places), kind="stable")
        else:
            order = sorted(range(len(places)), key=self._names(places).__getitem__)
        return ((int(places[index, 0]), int(places[index, 1])) for index in order)

    def unsorted(self) -> Iterator[Place]:
        """Their places by their numbers."""
        for unit, (first, end) in enumerate(pairwise(self._firsts)):
            start = max(self._numbers.start, first) - first
            rows = range(start, max(start, min(self._numbers.stop, end) - first))
            path = self._stores[unit].store.paths.samples
            yield from ((unit, row) for row, _ in selected_lines(path, rows, self._own(unit), self._selection.source))

    def _own(self, unit: int) -> frozenset[int] | None:
        """The labels of the selected classes in one of the stores."""
        if self._wanted is None:
            return None
        return frozenset(label for label, new in enumerate(self.labels[unit]) if new in self._wanted)

    def _labels(self, places: Places) -> NDArray[np.int64]:
        found = np.empty(len(places), np.int64)
        for unit, rows in enumerate(self._stores):
            here = places[:, 0] == unit
            found[here] = np.array(self.labels[unit])[rows.store.labels[places[here, 1]]]
        return found

    def _names(self, places: Places) -> list[bytes]:
        return [name_bytes(self._stores[unit].sample(row).source) for unit, row in map(np.ndarray.tolist, places)]
