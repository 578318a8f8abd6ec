"""The columns of a store that is being built: numeric columns of the source, and kept boxes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decodeonce.prep.build.journal import BlockRecord
from decodeonce.prep.build.plan import Plan
from decodeonce.prep.pixels.geometry import Fit, fit_to, turned_box, upright
from decodeonce.prep.sources import Source
from decodeonce.store.manifest import Column

Rows = NDArray[np.int64]


class PlannedColumn(NamedTuple):
    """A column, and the function that returns its values, (n, *shape), for n planned rows."""

    column: Column
    values: Callable[[Rows], NDArray[Any]]


def planned_columns(plan: Plan, record_of: Callable[[int], BlockRecord]) -> list[PlannedColumn]:
    """Return the columns of a planned store; `record_of` returns the record of the block that holds a planned row."""
    source = plan.source()
    own = [PlannedColumn(column, partial(_plan_values, plan, number)) for number, column in enumerate(plan.columns)]
    others = [PlannedColumn(column, partial(_source_values, plan, source, column)) for column in source.columns()]
    return [*own, *others, *(_KeptBoxes(plan, record_of).columns() if plan.recipe.kept_boxes else [])]


def _plan_values(plan: Plan, number: int, rows: Rows) -> NDArray[Any]:
    values: NDArray[Any] = plan.column_values(number)[rows]
    return values


def _source_values(plan: Plan, source: Source, column: Column, rows: Rows) -> NDArray[Any]:
    return source.column_values(column, [plan.entry(row) for row in rows.tolist()])


class _KeptBoxes:
    """Moves boxes with their image into the row: rotates, scales, shifts and clips them.

    Each of the three columns computes the boxes again, for all rows of a block at once. This takes 2 µs per row; one
    row at a time takes 25 µs.
    """

    def __init__(self, plan: Plan, record_of: Callable[[int], BlockRecord]) -> None:
        self._plan, self._record_of, self._most = plan, record_of, plan.recipe.kept_boxes
        self._turns: tuple[int, dict[int, int]] = (-1, {})

    def columns(self) -> list[PlannedColumn]:
        """Return the columns: boxes in pixels of the row, padded with 0; their number; their labels, padded with -1."""
        boxes = Column("boxes", "boxes.npy", "<f4", (self._most, 4))
        count = Column("box_count", "box_count.npy", "<i4", ())
        labels = Column("box_labels", "box_labels.npy", "<i4", (self._most,))
        return [
            PlannedColumn(boxes, self._boxes),
            PlannedColumn(count, self._counts),
            PlannedColumn(labels, self._labels),
        ]

    def _boxes(self, rows: Rows) -> NDArray[np.float64]:
        placed = self._placed(rows)
        return _packed(placed, _present(placed), 0)

    def _counts(self, rows: Rows) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = _present(self._placed(rows)).sum(1)
        return counts

    def _labels(self, rows: Rows) -> NDArray[np.int32]:
        return _packed(self._plan.box_labels[rows], _present(self._placed(rows)), -1)

    def _placed(self, rows: Rows) -> NDArray[np.float64]:
        """Return the clipped boxes in row pixels, (n, K, 4): NaN for missing ones, no area for those outside."""
        boxes, fits = np.array(self._plan.boxes[rows]), np.empty((len(rows), 1, 4))
        for index, row in enumerate(rows.tolist()):
            fit, turn = self._fit(row)
            fits[index] = fit.width, fit.height, fit.left, fit.top
            if turn != 1:
                boxes[index] = [turned_box(box, turn) for box in boxes[index].tolist()]
        placed = boxes * fits[:, :, [0, 1, 0, 1]] - fits[:, :, [2, 3, 2, 3]]
        return placed.clip(0, 2 * (self._plan.recipe.width, self._plan.recipe.height))

    def _fit(self, row: int) -> tuple[Fit, int]:
        """Return the Fit and the EXIF orientation of a planned row's image."""
        recipe, record = self._plan.recipe, self._record_of(row)
        if self._turns[0] != record.block:
            self._turns = (record.block, dict(record.turns))
        index, turn = row % self._plan.blocks.block_rows, self._turns[1].get(row, 1)
        width, height = record.sizes[2 * index : 2 * index + 2]
        return fit_to(recipe.fit, upright((width, height), turn), (recipe.width, recipe.height)), turn


def _present(boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which boxes have an area, (n, K)."""
    present: NDArray[np.bool_] = np.all(boxes[:, :, :2] < boxes[:, :, 2:], axis=2)
    return present


def _packed(values: NDArray[Any], present: NDArray[np.bool_], absent: int) -> NDArray[Any]:
    """Return the values (n, K, ...) with those of present boxes first in each row, padded with `absent`."""
    packed = np.full_like(values, absent)
    packed[np.sort(present)[:, ::-1]] = values[present]
    return packed
