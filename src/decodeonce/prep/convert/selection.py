"""The rows that a conversion takes from its input stores, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from decodeonce.prep.convert.merge import merged_classes
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.recipe import Sort
from decodeonce.store.select import Selection, labels_of, matching_lines

InputRow = tuple[int, int]  # the index of a store, and a row of it


class SelectedRows:
    """Iterate over the selected rows of `stores`.

    Row numbers count through all stores. Rows are in the order of their numbers unless `sort` is given: "class" sorts
    them by label, "source" by the bytes of their source names. The sort is stable.
    """

    def __init__(self, stores: Sequence[StoreRows], selection: Selection, sort: Sort | None) -> None:
        self._stores, self._selection, self._sort = stores, selection, sort
        self.classes, self.labels = merged_classes([rows.manifest.classes for rows in stores])
        self._first_numbers = list(accumulate((len(rows.store) for rows in stores), initial=0))
        self._numbers = selection.numbers(self._first_numbers[-1])
        self._selected_labels = labels_of(selection.classes, self.classes)

    @property
    def has_all_rows(self) -> bool:
        """Whether every row is selected, in any order."""
        return self.facts(None).keys() <= {"sort"}

    def facts(self, shuffle_seed: int | None) -> dict[str, object]:
        """Return the entry "selected" of a recipe: empty if all rows are taken in their order."""
        every = len(self._numbers) == self._first_numbers[-1]
        facts = {
            "classes": list(self._selection.classes) or None,
            "source": self._selection.source,
            "rows": None if every else [self._numbers.start, self._numbers.stop],
            "sort": self._sort,
            "shuffle_seed": shuffle_seed,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def __iter__(self) -> Iterator[InputRow]:
        """Yield the selected rows in their order; a sort holds all of them in memory."""
        return self.unsorted() if self._sort is None else iter(sorted(self.unsorted(), key=self._sort_key))

    def unsorted(self) -> Iterator[InputRow]:
        """Yield the selected rows in the order of their numbers."""
        for unit, (first, end) in enumerate(pairwise(self._first_numbers)):
            start = max(self._numbers.start, first) - first
            rows = range(start, max(start, min(self._numbers.stop, end) - first))
            path, labels = self._stores[unit].store.paths.samples, self._labels_in(unit)
            yield from ((unit, row) for row, _ in matching_lines(path, rows, labels, self._selection.source))

    def _labels_in(self, unit: int) -> frozenset[int] | None:
        """Return the labels that the selected classes have in one of the stores; None if all classes are selected."""
        if self._selected_labels is None:
            return None
        return frozenset(label for label, new in enumerate(self.labels[unit]) if new in self._selected_labels)

    def _sort_key(self, input_row: InputRow) -> int | bytes:
        unit, row = input_row
        if self._sort == "class":
            label: int = self._stores[unit].store.labels[row]
            return self.labels[unit][label]
        return name_bytes(self._stores[unit].sample(row).source)
