"""Convert arguments that several classes of this package have."""

from __future__ import annotations

import operator
import os
from typing import SupportsIndex

import numpy as np

from decodeonce.store import Store, open_store

StoreLike = str | os.PathLike[str] | Store


def as_store(store: StoreLike) -> Store:
    """Return an open store."""
    return store if isinstance(store, Store) else open_store(store)


def whole(name: str, value: object, least: int | None = None) -> int:
    """Return a whole number of any type as an int. ValueError unless it is one, of `least` or more if that is given."""
    bound = "" if least is None else f" of {least} or more"
    error = ValueError(f"{name} is {value!r}, expected a whole number{bound}")
    if isinstance(value, bool | np.bool_) or not isinstance(value, SupportsIndex):
        raise error
    try:
        number = operator.index(value)
    except TypeError:  # an array or tensor that is not a single whole number
        raise error from None
    if least is not None and number < least:
        raise error
    return number
