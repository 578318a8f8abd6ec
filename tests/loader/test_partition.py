"""All ranks together take each row exactly once, in the same number of steps, also when an epoch is resumed."""

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from decodeonce.loader.order import Shuffle, derive_key, make_order
from decodeonce.loader.partition import GROUP_ROWS, PartitionKind, StepRows, Tail, make_partition, plan_steps

KINDS, SHUFFLES, TAILS = get_args(PartitionKind), get_args(Shuffle), get_args(Tail)
worlds = st.integers(1, 7)
batches = st.integers(1, 40)
counts = st.integers(1, 1500)


def rank_plan(
    count: int,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    partition: PartitionKind = "global",
    tail: Tail = "keep",
    shuffle: Shuffle = "full",
    consumed: int = 0,
) -> list[StepRows]:
    """The steps of one rank after the first `consumed` rows."""
    part = make_partition(partition, range(count), batch_size, rank, world_size, tail)
    order = make_order(shuffle, len(part.rows), 4, derive_key(0, 0, *part.words))
    return list(plan_steps(order, part, consumed, 0))


def valid_rows(plans: list[list[StepRows]]) -> list[int]:
    """The valid rows of all ranks."""
    return [row for plan in plans for step in plan for row in step.rows[: step.valid].tolist()]


def plans(
    count: int, world_size: int, batch_size: int, partition: PartitionKind, tail: Tail, **settings: Any
) -> list[list[StepRows]]:
    """The steps of every rank. Skips examples in which a rank has no row or no step."""
    assume(partition == "global" or count >= world_size)
    assume(tail != "drop" or count >= world_size * batch_size)
    settings |= {"world_size": world_size, "batch_size": batch_size, "partition": partition, "tail": tail}
    return [rank_plan(count, rank=rank, **settings) for rank in range(world_size)]


@given(counts, worlds, batches, st.sampled_from(KINDS), st.sampled_from(TAILS), st.sampled_from(SHUFFLES))
def test_ranks_take_each_row_once_in_the_same_number_of_steps(
    count: int, world_size: int, batch_size: int, partition: PartitionKind, tail: Tail, shuffle: Shuffle
) -> None:
    ranks = plans(count, world_size, batch_size, partition, tail, shuffle=shuffle)
    assert len({len(plan) for plan in ranks}) == 1
    rows = valid_rows(ranks)
    assert len(rows) == len(set(rows))
    if tail == "drop":
        smallest = count // world_size if partition == "range" else count
        stride = batch_size if partition == "range" else batch_size * world_size
        assert len(rows) == smallest // stride * batch_size * world_size
    else:
        assert sorted(rows) == list(range(count))


@given(counts, worlds, batches, st.sampled_from(KINDS), st.sampled_from(TAILS))
def test_batches_have_their_size_and_ascending_rows(
    count: int, world_size: int, batch_size: int, partition: PartitionKind, tail: Tail
) -> None:
    ranks = plans(count, world_size, batch_size, partition, tail)
    for step in itertools.chain(*ranks):
        for part in (step.rows[: step.valid], step.rows[step.valid :]):
            assert (np.diff(part) >= 0).all()
        assert 0 <= step.rows.min() <= step.rows.max() < count
    for step in itertools.chain(*(plan[:-1] for plan in ranks)):
        assert (len(step.rows), step.valid) == (batch_size, batch_size)
    lasts = [plan[-1] for plan in ranks]
    if tail != "keep":
        assert {len(last.rows) for last in lasts} == {batch_size}
    else:
        assert max(last.valid for last in lasts) - min(last.valid for last in lasts) <= 1
        assert all(len(last.rows) == max(last.valid, 1) for last in lasts)


@given(counts, worlds, batches, st.sampled_from(KINDS), st.sampled_from(TAILS), st.data())
def test_resuming_gives_exactly_the_rest(
    count: int, world_size: int, batch_size: int, partition: PartitionKind, tail: Tail, data: st.DataObject
) -> None:
    ranks = plans(count, world_size, batch_size, partition, tail)
    done = data.draw(st.integers(0, len(ranks[0]) - 1))
    stride = batch_size if partition == "range" else batch_size * world_size
    rest = plans(count, world_size, batch_size, partition, tail, consumed=done * stride)
    for plan, remaining in zip(ranks, rest, strict=True):
        assert [(s.rows.tolist(), s.valid) for s in plan[done:]] == [(s.rows.tolist(), s.valid) for s in remaining]


@given(counts, worlds, batches, worlds, batches, st.sampled_from(TAILS), st.data())
def test_resuming_with_a_different_world_size_gives_each_row_once(
    count: int, world: int, batch: int, other_world: int, other_batch: int, tail: Tail, data: st.DataObject
) -> None:
    assume(tail != "drop" or count >= other_world * other_batch)
    before = plans(count, world, batch, "global", tail)
    done = data.draw(st.integers(0, len(before[0]) - 1))
    after = plans(count, other_world, other_batch, "global", tail, consumed=done * world * batch)
    rows = valid_rows([plan[:done] for plan in before]) + valid_rows(after)
    assert len(rows) == len(set(rows))
    assert set(rows) <= set(range(count))
    assert count - len(rows) < (other_world * other_batch if tail == "drop" else 1)


def test_padding_comes_from_the_start_of_the_epoch_and_repeats() -> None:
    ranks = [rank_plan(10, batch_size=4, rank=rank, world_size=2, tail="pad", shuffle="none") for rank in (0, 1)]
    assert [(s.rows.tolist(), s.valid) for s in ranks[0]] == [([0, 1, 2, 3], 4), ([8, 9, 0, 1], 2)]
    assert [(s.rows.tolist(), s.valid) for s in ranks[1]] == [([4, 5, 6, 7], 4), ([2, 3, 4, 5], 0)]
    (step,) = rank_plan(3, batch_size=8, tail="pad", shuffle="none")  # the store is smaller than a batch
    assert (step.rows.tolist(), step.valid) == ([0, 1, 2, 0, 0, 1, 1, 2], 3)


def test_remainder_is_that_of_the_global_batch() -> None:
    def remainder(partition: PartitionKind, world_size: int, tail: Tail, count: int = 10) -> int:
        return make_partition(partition, range(count), 2, 0, world_size, tail).remainder

    tails: tuple[Tail, ...] = ("keep", "pad")
    for tail in tails:
        assert (remainder("global", 3, tail), remainder("global", 3, tail, count=12)) == (4, 0)
        assert (remainder("global", 1, tail, count=9), remainder("range", 1, tail, count=9)) == (1, 1)
        assert remainder("range", 2, tail) == 0  # each rank has a last batch of its own
    assert (remainder("global", 3, "drop"), remainder("range", 1, "drop", count=9)) == (0, 0)


def test_batches_larger_and_smaller_than_a_group() -> None:
    count = 3 * GROUP_ROWS + 5
    for batch_size in (GROUP_ROWS + 7, GROUP_ROWS // 3, 1000):
        assert sorted(valid_rows([rank_plan(count, batch_size=batch_size)])) == list(range(count))


def test_impossible_partitions_are_rejected() -> None:
    few = r"batch_size is 4, but a rank gets only 3 rows \(10 rows in all, world_size 3\)"
    wrong: list[tuple[int, PartitionKind, int, int, Tail, str]] = [
        (10, "global", 4, 3, "drop", few),
        (10, "range", 4, 3, "drop", few),
        (2, "range", 1, 3, "keep", "2 rows are too few for 3 ranks"),
        (0, "global", 1, 1, "keep", "no rows"),
    ]
    for count, kind, batch_size, world_size, tail, message in wrong:
        with pytest.raises(ValueError, match=message):
            make_partition(kind, range(count), batch_size, 0, world_size, tail)
