"""Orders are uniform permutations that can start at any position and never change."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from decodeonce.loader.order import WINDOW_BLOCKS, FeistelPermutation, Shuffle, WindowOrder, derive_key, make_order
from decodeonce.loader.partition import make_partition

keys = st.integers(0, 2**64 - 1)


@given(st.sampled_from(get_args(Shuffle)), st.integers(1, 6000), st.integers(1, 300), keys, st.data())
def test_order_is_a_permutation_that_can_start_anywhere(
    shuffle: Shuffle, count: int, block_rows: int, key: int, data: st.DataObject
) -> None:
    order = make_order(shuffle, count, block_rows, key)
    rows = order.at(np.arange(count))
    assert np.array_equal(np.sort(rows), np.arange(count))
    positions = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=50)))
    assert np.array_equal(order.at(positions), rows[positions])


@pytest.mark.parametrize(
    ("shuffle", "count"), [("full", 10**10), ("full", 10**12 + 39), ("full", 2**62 - 1), ("window", 10**8)]
)
def test_huge_orders_can_start_anywhere(shuffle: Shuffle, count: int) -> None:
    positions = count - 1 - np.arange(256)
    rows = make_order(shuffle, count, 170, derive_key(1, 2)).at(positions)
    assert len(set(rows.tolist())) == 256
    assert rows.min() >= 0
    assert rows.max() < count


def test_large_order_needs_no_more_memory_than_a_small_one() -> None:
    small, large = ({k: np.size(v) for k, v in vars(FeistelPermutation(n, 1)).items()} for n in (10**4, 10**10))
    assert small == large
    assert max(large.values()) < 10


def test_orders_do_not_change_between_releases() -> None:
    """A checkpoint from one release must resume in the same order with the next release."""
    first = np.arange(6)
    key = derive_key(0, 0)
    assert make_order("full", 10, 4, key).at(first).tolist() == GOLDEN["table"]
    assert make_order("full", 1281167, 170, key).at(first).tolist() == GOLDEN["network"]
    assert make_order("window", 1281167, 170, key).at(first).tolist() == GOLDEN["window"]
    assert make_partition("global", range(9), 2, 1, 3, "keep").words == ()
    assert make_partition("range", range(9), 2, 1, 3, "keep").words == (3, 1)  # of the key of a rank's own order


GOLDEN = {
    "table": [4, 7, 6, 9, 8, 0],
    "network": [988398, 1135626, 573431, 592666, 243900, 731014],
    "window": [489860, 381576, 157391, 7582, 1050592, 1035158],
}


def test_key_depends_on_every_word() -> None:
    words = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (-1, 0), (2**64, 1 << 63), (0, 0, 2, 1), (0, 0, 1, 2)]
    assert len({derive_key(*w) for w in words}) == len(words)


def chi_square(counts: NDArray[np.int64]) -> float:
    """Chi-square statistic for uniform counts, in standard deviations from its mean: near 0 if counts are uniform."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_small_orders_are_equally_likely(count: int) -> None:
    """Over many seeds, every permutation of a small count occurs equally often."""
    seen: dict[tuple[int, ...], int] = {}
    draws, permutations = 6000, int(np.prod(np.arange(1, count + 1)))
    for seed in range(draws):
        order = tuple(make_order("full", count, 1, derive_key(seed, 0)).at(np.arange(count)).tolist())
        seen[order] = seen.get(order, 0) + 1
    counts = np.array([*seen.values(), *[0] * (permutations - len(seen))])
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize("count", [1030, 5461])
def test_large_orders_are_uniform_in_positions_and_neighbors(count: int) -> None:
    """Over keys and positions, rows and the distances between neighboring rows are uniform."""
    positions, cells = np.arange(64), 41
    rows = np.array([FeistelPermutation(count, derive_key(3, epoch)).at(positions) for epoch in range(1500)])
    for column in (0, 1, 63):
        assert abs(chi_square(np.bincount(rows[:, column] * cells // count, minlength=cells))) < 4
    distances = np.diff(rows, axis=1) % count
    assert abs(chi_square(np.bincount((distances * cells // count).ravel(), minlength=cells))) < 4
    again = rows[1:] == rows[:-1]  # a row has the same position in the next epoch with probability 1 / count
    assert abs(again.mean() * count - 1) < 4 * np.sqrt(count / again.size)


@given(st.integers(1, 1500), st.integers(1, 300), keys)
@settings(max_examples=40)
def test_blocks_of_a_window_order_are_in_sequence(count: int, block_rows: int, key: int) -> None:
    order = WindowOrder(count, block_rows, key)
    blocks = [order.block_rows_at(np.array([place])).tolist() for place in range(order.blocks)]
    assert order.block_rows_at(np.arange(order.blocks)).tolist() == [row for block in blocks for row in block]
    assert sorted(row for block in blocks for row in block) == list(range(count))
    rows = order.at(np.arange(count)).tolist()
    for start in range(0, order.blocks, WINDOW_BLOCKS):
        window = {row for block in blocks[start : start + WINDOW_BLOCKS] for row in block}
        assert set(rows[: len(window)]) == window
        del rows[: len(window)]
