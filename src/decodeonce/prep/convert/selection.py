"""The rows of one or several stores that a conversion takes, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from decodeonce.prep.convert.merge import joined_classes
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.recipe import Sort
from decodeonce.store.select import Selection, labels_of, matching_lines

Place = tuple[int, int]  # the number of a store, a row of it


class Chosen:
    """The selected rows of `stores`, in the order of their numbers, which count through all stores, or sorted.

    `sort` "class" orders them by label, "source" by the bytes of their source names; the sort is stable.
    """

    def __init__(self, stores: Sequence[StoreRows], selection: Selection, sort: Sort | None) -> None:
        self._stores, self._selection, self._sort = stores, selection, sort
        self.classes, self.labels = joined_classes([rows.manifest.classes for rows in stores])
        self._firsts = list(accumulate((len(rows.store) for rows in stores), initial=0))
        self._numbers = selection.numbers(self._firsts[-1])
        self._wanted = labels_of(selection.classes, self.classes)

    @property
    def whole(self) -> bool:
        """Whether every row is taken, in whatever order."""
        return self.facts(None).keys() <= {"sort"}

    def facts(self, shuffle_seed: int | None) -> dict[str, Any]:
        """What a recipe says of it: empty if all rows are taken in their order."""
        every = len(self._numbers) == self._firsts[-1]
        facts = {
            "classes": list(self._selection.classes) or None,
            "source": self._selection.source,
            "rows": None if every else [self._numbers.start, self._numbers.stop],
            "sort": self._sort,
            "shuffle_seed": shuffle_seed,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def __iter__(self) -> Iterator[Place]:
        """Their places in the order that is asked for; sorting holds all of them."""
        return self.unsorted() if self._sort is None else iter(sorted(self.unsorted(), key=self._sort_key))

    def unsorted(self) -> Iterator[Place]:
        """Their places by their numbers."""
        for unit, (first, end) in enumerate(pairwise(self._firsts)):
            start = max(self._numbers.start, first) - first
            rows = range(start, max(start, min(self._numbers.stop, end) - first))
            path = self._stores[unit].store.paths.samples
            yield from ((unit, row) for row, _ in matching_lines(path, rows, self._own(unit), self._selection.source))

    def _own(self, unit: int) -> frozenset[int] | None:
        """The labels of the selected classes in one of the stores."""
        if self._wanted is None:
            return None
        return frozenset(label for label, new in enumerate(self.labels[unit]) if new in self._wanted)

    def _sort_key(self, place: Place) -> int | bytes:
        unit, row = place
        if self._sort == "class":
            label: int = self._stores[unit].store.labels[row]
            return self.labels[unit][label]
        return name_bytes(self._stores[unit].sample(row).source)
