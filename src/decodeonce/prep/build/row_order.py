"""The order of a store's rows: the source's, or a permutation by a seed."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.prep.build.scan import Listing
from decodeonce.splitmix import GOLDEN, mix

CHUNK = 1 << 13


def shuffled(count: int, seed: int | None) -> NDArray[np.int64]:
    """The source positions in row order: sorted by a keyed hash, the same on every machine and numpy version.

    No two keys are equal, for the hash is a bijection, so any sorting algorithm gives the same. 16 bytes a sample.
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
    """The source positions in row order; by units, these are permuted whole and keep their own order inside."""
    if seed is None or not by_unit or not len(listing):
        return shuffled(len(listing), seed)
    ranks = np.argsort(shuffled(int(listing.units.max()) + 1, seed))
    return np.argsort(ranks[listing.units], kind="stable")
