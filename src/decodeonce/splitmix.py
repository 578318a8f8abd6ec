"""The hash function that every shuffled order is derived from: the rows of a plan and the rows of an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
FACTOR_1, FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
GOLDEN = 0x9E3779B97F4A7C15


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix each 64-bit word with the finaliser of splitmix64. It is a bijection, so different words stay different.

    From Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    words = (words ^ (words >> _SHIFT_1)) * np.uint64(FACTOR_1)
    words = (words ^ (words >> _SHIFT_2)) * np.uint64(FACTOR_2)
    mixed: NDArray[np.uint64] = words ^ (words >> _SHIFT_3)
    return mixed
