"""The order of an epoch: which row stands at which position, computed for any position on its own.

No permutation is ever held in memory: positions go through a keyed bijection, so an epoch of 10^10 rows starts as fast
as one of 10^4 and may be entered anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decodeonce.splitmix import GOLDEN, mix

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

SHUFFLES = ("full", "window", "none")
# Blocks are 32 MiB in large stores, so a window is 1 GiB: a small part of a node's page cache, yet 5,000 pictures of
# 256x256 to mix. In small stores it is an eighth of the rows.
WINDOW_BLOCKS = 32

_MASK = (1 << 64) - 1
_HIGH_HALF = np.uint64(32)
# Up to this count a permutation is a table sorted by random keys, exactly uniform and, measured, no slower than the
# network (40 us); the network gets what is large enough that its halves mix.
_TABLE_LIMIT = 1024
_ROUNDS = 8


class Bijection(Protocol):
    """A permutation of 0..count-1."""

    def forward(self, numbers: Integers) -> Integers:
        """What stands at these positions."""

    def inverse(self, numbers: Integers) -> Integers:
        """The positions at which these stand."""


class Order(Protocol):
    """The sequence of an epoch's rows, 0..count-1."""

    def rows(self, positions: Integers) -> Integers:
        """The rows at these positions of the epoch."""


def derive_key(*words: int) -> int:
    """A 64-bit key from whole numbers of which each counts, as does their sequence."""
    key = 0
    for word in words:
        key = int(mix(np.array([(key + GOLDEN) & _MASK ^ (word & _MASK)], np.uint64))[0])
    return key


def permutation(count: int, key: int) -> Bijection:
    """A permutation of 0..count-1 that `key` chooses; count is below 2^62."""
    return TableBijection(count, key) if count <= _TABLE_LIMIT else FeistelBijection(count, key)


def make_order(shuffle: str, count: int, block_rows: int, key: int) -> Order:
    """The order of `count` rows under one of `SHUFFLES`; `block_rows` matters to "window" alone."""
    if shuffle == "full":
        return FullOrder(count, key)
    if shuffle == "window":
        return WindowOrder(count, block_rows, key)
    return StoreOrder()


class TableBijection:
    """Numbers sorted by pseudorandom keys."""

    def __init__(self, count: int, key: int) -> None:
        # The mixer is a bijection of 64 bits, so no two keys are equal and any sorting algorithm gives the same.
        self._table = np.argsort(mix(np.arange(count, dtype=np.uint64) + np.uint64(key)))

    def forward(self, numbers: Integers) -> Integers:
        return self._table[numbers]

    def inverse(self, numbers: Integers) -> Integers:
        return np.argsort(self._table)[numbers]


class FeistelBijection:
    """A generalised Feistel network on Z_a x Z_b with cycle walking.

    After Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), method 3: a*b exceeds count by less
    than sqrt(count), so hardly any number has to walk. 8 rounds, where 6 resist the known attacks on few rounds.
    """

    def __init__(self, count: int, key: int) -> None:
        a = math.isqrt(count - 1) + 1
        self._count = np.uint64(count)
        self._a, self._b = np.uint64(a), np.uint64(-(-count // a))
        self._keys = mix(np.uint64(key) + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(GOLDEN))

    def forward(self, numbers: Integers) -> Integers:
        return self._walk(numbers, self._encrypt)

    def inverse(self, numbers: Integers) -> Integers:
        return self._walk(numbers, self._decrypt)

    def _walk(self, numbers: Integers, step: Callable[[Words], Words]) -> Integers:
        words = step(numbers.astype(np.uint64))
        while (outside := words >= self._count).any():
            words[outside] = step(words[outside])
        return words.astype(np.int64)

    def _encrypt(self, words: Words) -> Words:
        left, right = words % self._a, words // self._a
        for key, modulus in zip(self._keys, (self._a, self._b) * (_ROUNDS // 2), strict=True):
            left, right = right, (left + (mix(right + key) >> _HIGH_HALF)) % modulus
        result: Words = right * self._a + left
        return result

    def _decrypt(self, words: Words) -> Words:
        left, right = words % self._a, words // self._a
        for key, modulus in zip(self._keys[::-1], (self._b, self._a) * (_ROUNDS // 2), strict=True):
            # The same 32 bits as in _encrypt, made negative within the modulus: words have no sign.
            left, right = (right + modulus - (mix(left + key) >> _HIGH_HALF) % modulus) % modulus, left
        result: Words = right * self._a + left
        return result


class StoreOrder:
    """Rows as they lie in the store."""

    def rows(self, positions: Integers) -> Integers:
        return positions


class FullOrder:
    """All rows shuffled."""

    def __init__(self, count: int, key: int) -> None:
        self._bijection = permutation(count, key)

    def rows(self, positions: Integers) -> Integers:
        return self._bijection.forward(positions)


class WindowOrder:
    """Blocks shuffled, then rows shuffled within each window of `WINDOW_BLOCKS` consecutive blocks of that order.

    The store's last block may be short, by `missing` rows, and stands anywhere. Positions and offsets are computed as
    if it were full, and what lies behind its end is moved on by what is missing.
    """

    def __init__(self, count: int, block_rows: int, key: int) -> None:
        self.blocks, self.block_rows = -(-count // block_rows), block_rows
        self._count, self._key = count, key
        self._window_rows = WINDOW_BLOCKS * block_rows
        self._missing = self.blocks * block_rows - count
        self._order = permutation(self.blocks, key)
        self._short = int(self._order.inverse(np.array([self.blocks - 1]))[0])

    def block_rows_at(self, places: Integers) -> Integers:
        """The rows, block by block and as they lie in the store, of the blocks that stand at these places."""
        firsts = self._order.forward(places) * self.block_rows
        rows: Integers = (firsts[:, None] + np.arange(self.block_rows)).reshape(-1)
        return rows[rows < self._count]

    def windows(self, positions: Integers) -> Integers:
        """The numbers of the windows that these positions of the epoch lie in."""
        behind_short_window = (self._short // WINDOW_BLOCKS + 1) * self._window_rows - self._missing
        windows: Integers = (positions + self._missing * (positions >= behind_short_window)) // self._window_rows
        return windows

    def rows(self, positions: Integers) -> Integers:
        windows = self.windows(positions)
        rows = np.empty_like(positions)
        for window in np.unique(windows):
            inside = windows == window
            rows[inside] = self._window(int(window), positions[inside])
        return rows

    def _window(self, window: int, positions: Integers) -> Integers:
        first, last = self._first_position(window), self._first_position(window + 1)
        offsets = permutation(last - first, derive_key(self._key, window)).forward(positions - first)
        behind_short = (self._short + 1) * self.block_rows - self._missing
        full = first + offsets + self._missing * (first + offsets >= behind_short)
        places, inside = np.divmod(full, self.block_rows)
        return self._order.forward(places) * self.block_rows + inside

    def _first_position(self, window: int) -> int:
        first = window * self._window_rows
        return min(self._count, first - self._missing * (first > self._short * self.block_rows))
