"""Columns of numbers that a source has for every sample: the flag --column NAME."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.prep.entry import Value
from decodeonce.store.columns import column_file
from decodeonce.store.manifest import Column

NOT_FINITE = {"nan", "inf", "infinity"}  # as NumPy and pandas write them; JSON spells them differently
WHOLE_IN_FLOAT32 = 2**24  # float32 represents every whole number up to here


class NumberColumn:
    """Collects the values of a column: all numbers, or all lists of numbers of the same length.

    The dtype is int64 if all numbers are whole, otherwise float32, or float64 if there are also numbers beyond 2**24:
    there float32 has gaps of more than 1. Each number takes 8 bytes of memory.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._shape: tuple[int, ...] | None = None  # of the first value
        self._held: array[Any] = array("q")

    def check(self, value: object, where: str) -> Value:
        """Return the value if it fits this column; otherwise raise BuildError, starting with `where`."""
        numbers = value if isinstance(value, list) else [value]
        if not numbers or not all(map(_is_number, numbers)) or self._shape_from_first(value) != _shape_of(value):
            expected = "a number, or a list of numbers like [1, 2]"
            if self._shape is not None:
                expected = f"a list of {counted(self._shape[0], 'number')}" if self._shape else "a number"
                expected += ", like the first row"
            found = "nothing" if value is None else f"{value!r:.80}"
            why = ""
            if isinstance(value, str):
                why = "; a column cannot hold text: store token ids"
            elif any(isinstance(number, int | float) and not _is_number(number) for number in numbers):
                why = "; numbers must be finite, and whole numbers must fit int64"
            raise BuildError(f"{where}: column {self.name!r}: found {found}, expected {expected}{why}")
        return value  # type: ignore[return-value]

    def append(self, value: Value) -> None:
        """Append a value that `check` returned."""
        self._shape_from_first(value)
        numbers = value if isinstance(value, list) else [value]
        if self._held.typecode == "q" and float in map(type, numbers):
            self._held = array("d", self._held)
        self._held.extend(numbers)

    def __getitem__(self, index: int) -> Value:
        if not self._shape:
            return self._held[index]  # type: ignore[no-any-return]
        (length,) = self._shape
        return self._held[index * length : (index + 1) * length].tolist()

    def to_array(self) -> NDArray[Any]:
        """Return the values as int64 or float64."""
        return np.frombuffer(self._held, np.dtype(self._held.typecode)).reshape(-1, *(self._shape or ()))

    def to_column(self) -> tuple[Column, NDArray[Any]]:
        """Return the column of the store, and its values as int64 or float64."""
        values = self.to_array()
        fits = self._held.typecode == "d" and np.abs(values).max() <= WHOLE_IN_FLOAT32
        return Column(self.name, column_file(self.name), "<f4" if fits else values.dtype.str, values.shape[1:]), values

    def _shape_from_first(self, value: object) -> tuple[int, ...]:
        if self._shape is None:
            self._shape = _shape_of(value)
        return self._shape


def _shape_of(value: object) -> tuple[int, ...]:
    return (len(value),) if isinstance(value, list) else ()


def _is_number(value: object) -> bool:
    """Return whether int64 or float64 can hold the value. True and False count as 1 and 0."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, float) and math.isfinite(value)


def number_columns(names: Sequence[str]) -> list[NumberColumn]:
    """Return a column for each name; raise BuildError if a store cannot have columns of these names."""
    for name in names:
        try:
            column_file(name)
        except ValueError as error:
            raise BuildError(f"--column: {error}") from None
        if list(names).count(name) > 1:
            raise BuildError(f"--column {name}: given more than once, expected once")
    return list(map(NumberColumn, names))


def parse_value(text: str) -> object:
    """Parse a field of a list: JSON or a word like "nan". Return other text as it is, and None for an empty field."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        word = text.strip()
        return float(word) if word.lower().lstrip("+-") in NOT_FINITE else word or None
