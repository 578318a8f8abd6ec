"""The columns of a store that is being built: the boxes that are kept beside its pictures, and what a source brings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decodeonce.prep.build.journal import BlockRecord
from decodeonce.prep.build.plan import Plan
from decodeonce.prep.entry import Box
from decodeonce.prep.pixels.geometry import boxes_in_row, fit_to, turned_box, upright
from decodeonce.prep.sources import Source
from decodeonce.store.manifest import Column

Rows = NDArray[np.int64]


class PlannedColumn(NamedTuple):
    """A column, and what gives its values, (n, *shape), for n planned rows."""

    column: Column
    values: Callable[[Rows], NDArray[Any]]


def planned_columns(plan: Plan, record_of: Callable[[int], BlockRecord]) -> list[PlannedColumn]:
    """The columns of a planned store; `record_of` gives the record of the block that a planned row lies in."""
    source = plan.source()
    own = [PlannedColumn(column, partial(_planned, plan, number)) for number, column in enumerate(plan.columns)]
    brought = [PlannedColumn(column, partial(_brought, plan, source, column)) for column in source.columns()]
    return [*own, *brought, *(_KeptBoxes(plan, record_of).columns() if plan.recipe.kept_boxes else [])]


def _planned(plan: Plan, number: int, rows: Rows) -> NDArray[Any]:
    values: NDArray[Any] = plan.column_values(number)[rows]
    return values


def _brought(plan: Plan, source: Source, column: Column, rows: Rows) -> NDArray[Any]:
    return source.column_values(column, [plan.entry(row) for row in rows.tolist()])


class _KeptBoxes:
    """Boxes follow their picture into the row: turned, resized, moved, clipped."""

    def __init__(self, plan: Plan, record_of: Callable[[int], BlockRecord]) -> None:
        self._plan, self._record_of, self._most = plan, record_of, plan.recipe.kept_boxes
        self._turns: tuple[int, dict[int, int]] = (-1, {})

    def columns(self) -> list[PlannedColumn]:
        """Left, top, right and bottom in pixels of the row, then zeros; how many are real; their labels, then -1."""
        boxes = Column("boxes", "boxes.npy", "<f4", (self._most, 4))
        count = Column("box_count", "box_count.npy", "<i4", ())
        labels = Column("box_labels", "box_labels.npy", "<i4", (self._most,))
        return [
            PlannedColumn(boxes, self._boxes),
            PlannedColumn(count, self._counts),
            PlannedColumn(labels, self._labels),
        ]

    def _boxes(self, rows: Rows) -> NDArray[np.float32]:
        values = np.zeros((len(rows), self._most, 4), np.float32)
        for index, row in enumerate(rows.tolist()):
            if placed := self._of(row):
                values[index, : len(placed)] = [box for box, _ in placed]
        return values

    def _counts(self, rows: Rows) -> NDArray[np.int32]:
        return np.array([len(self._of(row)) for row in rows.tolist()], np.int32)

    def _labels(self, rows: Rows) -> NDArray[np.int32]:
        values = np.full((len(rows), self._most), -1, np.int32)
        for index, row in enumerate(rows.tolist()):
            placed = self._of(row)
            values[index, : len(placed)] = [label for _, label in placed]
        return values

    def _of(self, row: int) -> list[tuple[Box, int]]:
        """The boxes that are in the row, each with its label."""
        recipe, record = self._plan.recipe, self._record_of(row)
        if self._turns[0] != record.block:
            self._turns = (record.block, dict(record.turns))
        index, turn = row % self._plan.blocks.block_rows, self._turns[1].get(row, 1)
        width, height = record.sizes[2 * index : 2 * index + 2]
        size, out = upright((width, height), turn), (recipe.width, recipe.height)
        boxes = [turned_box(box, turn) for box in self._plan.entry(row).boxes]
        placed = boxes_in_row(boxes, fit_to(recipe.fit, size, out), out)
        labels = self._plan.box_labels[row].tolist()  # as many as a row can have, so longer
        return [(box, label) for box, label in zip(placed, labels, strict=False) if box is not None]
