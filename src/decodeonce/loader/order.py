"""The order of an epoch: the row at each position, computed for each position independently.

A keyed bijection maps positions to rows, so no large permutation is held in memory. An epoch of 10^10 rows starts as
fast as one of 10^4, and can start at any position. Only weights need a table of all rows, made once for all epochs, and
a window order computes the order of all blocks when an epoch starts.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from decodeonce.store.hashing import GOLDEN, hexdigest, mix

Shuffle = Literal["full", "window", "none"]
Rows = NDArray[np.int64]
Words = NDArray[np.uint64]

# Blocks are 32 MiB in large stores, so a window is 1 GiB: a small part of a node's page cache, but still 5,000 images
# of 256x256 to shuffle. In small stores a window is an eighth of the rows.
WINDOW_BLOCKS = 32

_MASK = (1 << 64) - 1
# Weights become whole numbers with this sum, at most. float64 holds all of them exactly.
_UNIT_BITS = 53
_HIGH_HALF = np.uint64(32)
# Up to this count, a permutation is a table sorted by random keys. It is exactly uniform and was measured to be as fast
# as the Feistel network (40 us), which needs larger counts to mix well.
_TABLE_LIMIT = 1024
_ROUNDS = 8


def derive_key(*words: int) -> int:
    """Derive a 64-bit key from whole numbers. The key depends on every number and on their order."""
    key = 0
    for word in words:
        key = int(mix(np.array([(key + GOLDEN) & _MASK ^ (word & _MASK)], np.uint64))[0])
    return key


def permutation(count: int, key: int) -> TablePermutation | FeistelPermutation:
    """The permutation of 0..count-1 for `key`. `count` must be below 2^62."""
    return TablePermutation(count, key) if count <= _TABLE_LIMIT else FeistelPermutation(count, key)


def make_order(shuffle: Shuffle, count: int, block_rows: int, key: int, table: AliasTable | None = None) -> Order:
    """The order of `count` rows. Only "window" uses `block_rows`. With a table, rows are drawn from it."""
    if table is not None:
        return WeightedOrder(table, key)
    if shuffle == "full":
        return permutation(count, key)
    if shuffle == "window":
        return WindowOrder(count, block_rows, key)
    return StoredOrder()


class StoredOrder:
    """Rows in stored order."""

    def at(self, positions: Rows) -> Rows:
        return positions


class TablePermutation:
    """A table of numbers, sorted by pseudorandom keys."""

    def __init__(self, count: int, key: int) -> None:
        # The mixer is a bijection of 64 bits, so all keys differ and every sorting algorithm gives the same result.
        self._table = np.argsort(mix(np.arange(count, dtype=np.uint64) + np.uint64(key)))

    def at(self, positions: Rows) -> Rows:
        return self._table[positions]


class FeistelPermutation:
    """A generalised Feistel network on Z_a x Z_b with cycle walking.

    From Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), method 3. a*b exceeds count by less
    than sqrt(count), so few numbers need to walk. It has 8 rounds; 6 resist the known attacks on few rounds.
    """

    def __init__(self, count: int, key: int) -> None:
        a = math.isqrt(count - 1) + 1
        self._count = np.uint64(count)
        self._a, self._b = np.uint64(a), np.uint64(-(-count // a))
        self._keys = mix(np.uint64(key) + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(GOLDEN))

    def at(self, positions: Rows) -> Rows:
        words = self._encrypt(positions.astype(np.uint64))
        while (outside := words >= self._count).any():
            words[outside] = self._encrypt(words[outside])
        return words.astype(np.int64)

    def _encrypt(self, words: Words) -> Words:
        left, right = words % self._a, words // self._a
        for key, modulus in zip(self._keys, (self._a, self._b) * (_ROUNDS // 2), strict=True):
            left, right = right, (left + (mix(right + key) >> _HIGH_HALF)) % modulus
        encrypted: Words = right * self._a + left
        return encrypted


class WindowOrder:
    """Shuffle the blocks, then shuffle rows within each window of `WINDOW_BLOCKS` consecutive blocks of that order.

    The store's last block can be short by `missing` rows, and can be anywhere in the order. Positions and offsets are
    computed as if it were full. Everything after it is then shifted by the missing rows.
    """

    def __init__(self, count: int, block_rows: int, key: int) -> None:
        self.blocks, self.block_rows = -(-count // block_rows), block_rows
        self._count, self._key = count, key
        self._window_rows = WINDOW_BLOCKS * block_rows
        self._missing = self.blocks * block_rows - count
        self._block_order = permutation(self.blocks, key)
        # This takes 1 ms for the 7,537 blocks of ImageNet, and 0.4 s for 2.4 million blocks (80 TB).
        self._short = int(self._block_order.at(np.arange(self.blocks)).argmax())

    def block_rows_at(self, places: Rows) -> Rows:
        """The rows of the blocks at `places` in the block order, each block in stored order."""
        firsts = self._block_order.at(places) * self.block_rows
        rows: Rows = (firsts[:, None] + np.arange(self.block_rows)).reshape(-1)
        return rows[rows < self._count]

    def windows(self, positions: Rows) -> Rows:
        """The number of the window that contains each position."""
        behind_short_window = (self._short // WINDOW_BLOCKS + 1) * self._window_rows - self._missing
        windows: Rows = (positions + self._missing * (positions >= behind_short_window)) // self._window_rows
        return windows

    def at(self, positions: Rows) -> Rows:
        windows = self.windows(positions)
        rows = np.empty_like(positions)
        for window in np.unique(windows):
            inside = windows == window
            rows[inside] = self._window(int(window), positions[inside])
        return rows

    def _window(self, window: int, positions: Rows) -> Rows:
        first, last = self._first_position(window), self._first_position(window + 1)
        offsets = permutation(last - first, derive_key(self._key, window)).at(positions - first)
        behind_short = (self._short + 1) * self.block_rows - self._missing
        full = first + offsets + self._missing * (first + offsets >= behind_short)
        places, inside = np.divmod(full, self.block_rows)
        return self._block_order.at(places) * self.block_rows + inside

    def _first_position(self, window: int) -> int:
        first = window * self._window_rows
        return min(self._count, first - self._missing * (first > self._short * self.block_rows))


class AliasTable:
    """Walker's alias table: numbers 0..n-1 with given probabilities, each found in constant time.

    Every number has a column of the same height. The lower part, of height `kept`, stands for the number itself and the
    rest for its `alias`. A random column and a random height in it choose a number. Heights are whole numbers, so every
    machine makes the same table, and a number of weight 0 is never chosen.

    Args:
        weights: float64 (n,), finite, 0 or more, not all 0. Only their ratios matter.
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self.count = count = len(weights)
        self.height = height = (1 << _UNIT_BITS) // count
        ends = np.cumsum(weights / weights.max())  # divided, because the sum could exceed the largest float64
        units = np.diff(np.rint(ends / ends[-1] * (count * height)).astype(np.int64), prepend=0)
        self.digest = hexdigest(units.data.cast("B"))
        # Heavy numbers, in order, fill up the columns of light numbers, in order, until less than a column is left of
        # them. The next heavy number then fills up this last column.
        light = units < height
        lights, heavies = np.flatnonzero(light), np.flatnonzero(~light)
        filled = np.append(0, np.cumsum(height - units[lights]))  # before each light column, and after the last
        extra = np.cumsum(units[heavies] - height)  # what the heavy numbers up to each one can give
        self.kept, self.alias = units, np.arange(count)
        self.alias[lights] = heavies[extra.searchsorted(filled[:-1], "right")]
        self.alias[heavies[:-1]] = heavies[1:]
        self.kept[heavies] = height + extra - filled[filled.searchsorted(extra)]


class WeightedOrder:
    """Rows drawn from a table, with replacement. The draw at a position is a hash of the key and the position."""

    def __init__(self, table: AliasTable, key: int) -> None:
        self._table, self._key = table, np.uint64(key)

    def at(self, positions: Rows) -> Rows:
        words = mix(positions.astype(np.uint64) * np.uint64(GOLDEN) + self._key) >> np.uint64(64 - _UNIT_BITS)
        heights, columns = np.divmod(words.view(np.int64), self._table.count)
        rows: Rows = np.where(heights < self._table.kept[columns], columns, self._table.alias[columns])
        return rows


Order = WeightedOrder | StoredOrder | TablePermutation | FeistelPermutation | WindowOrder
