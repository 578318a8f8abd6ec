"""The order of a store's rows: the source's order, or a permutation by a seed."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.prep.build.scan import Listing
from decodeonce.splitmix import GOLDEN, mix

CHUNK = 1 << 13


def shuffled(count: int, seed: int | None) -> NDArray[np.int64]:
    """Return the source positions in row order, sorted by a hash of position and seed.

    The result is the same on every machine and NumPy version: the hash is a bijection, so keys are unique and any
    sorting algorithm gives the same order. Takes 16 bytes per sample.
    """
    if seed is None:
        return np.arange(count)
    start = np.uint64(xxhash.xxh3_64_intdigest(b"%d" % seed))
    keys = np.arange(count, dtype=np.uint64)
    for first in range(0, count, CHUNK):
        part = keys[first : first + CHUNK]
        part[:] = mix(part * np.uint64(GOLDEN) + start)
    return np.argsort(keys)


def row_order(listing: Listing, seed: int | None, *, by_unit: bool) -> NDArray[np.int64]:
    """Return the source positions in row order; `by_unit` permutes whole read units and keeps the order within one."""
    if seed is None or not by_unit or not len(listing):
        return shuffled(len(listing), seed)
    ranks = np.argsort(shuffled(int(listing.units.max()) + 1, seed))
    return np.argsort(ranks[listing.units], kind="stable")
