"""Convert arguments that several classes of this package have."""

from __future__ import annotations

import operator
import os
from contextlib import suppress
from typing import Any

import numpy as np

from decodeonce.store import Store, open_store

StoreLike = str | os.PathLike[str] | Store


def as_store(store: StoreLike) -> Store:
    """Return an open store."""
    return store if isinstance(store, Store) else open_store(store)


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number of any type as an int. ValueError unless it is one, of `least` or more if that is given."""
    number = None
    with suppress(TypeError):  # not a number, or an array or tensor that is not a single whole number
        number = operator.index(value)
    if number is None or isinstance(value, bool | np.bool_) or (least is not None and number < least):
        bound = "" if least is None else f" of {least} or more"
        raise ValueError(f"{name} is {value!r}, expected a whole number{bound}")
    return number
