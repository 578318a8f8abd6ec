"""The block queue: each block is taken once, and blocks that share a read unit go to the same worker."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.prep.building.pool import BlockQueue, Queue, UnitQueue


def spans_of(block_rows: int, unit_rows: list[int]) -> dict[int, tuple[int, int]]:
    """Return the first and last unit of each block, for units with these numbers of rows."""
    units = [unit for unit, rows in enumerate(unit_rows) for _ in range(rows)]
    firsts = range(0, len(units), block_rows)
    return {k: (units[first], units[min(first + block_rows, len(units)) - 1]) for k, first in enumerate(firsts)}


def take_all(queue: Queue, turns: list[int]) -> dict[int, list[int]]:
    """Let workers take blocks in the order of `turns`, repeatedly until none is left; return each worker's blocks."""
    taken: dict[int, list[int]] = {worker: [] for worker in turns}
    idle: set[int] = set()
    while len(idle) < len(taken):
        for worker in turns:
            block = queue.take(worker)
            if block is None:
                idle.add(worker)
            else:
                idle.clear()
                taken[worker].append(block)
    return taken


def count_reads(blocks: list[int], spans: dict[int, tuple[int, int]]) -> int:
    """Return how many units a worker reads if it keeps the last one in memory."""
    held, reads = -1, 0
    for block in blocks:
        first, last = spans[block]
        reads += last - first + (first != held)
        held = last
    return reads


turns = st.lists(st.integers(0, 4), min_size=1, max_size=12)


@given(st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=25), turns, st.data())
def test_each_unit_is_read_once_except_at_cuts(
    block_rows: int, unit_rows: list[int], order: list[int], data: st.DataObject
) -> None:
    spans = spans_of(block_rows, unit_rows)
    done = data.draw(st.sets(st.sampled_from(sorted(spans))))
    todo = sorted(set(spans) - done)
    taken = take_all(UnitQueue(todo, spans), order)
    assert sorted(chain(*taken.values())) == todo
    jumps = sum(k == 0 or blocks[k - 1] != block - 1 for blocks in taken.values() for k, block in enumerate(blocks))
    units = {unit for block in todo for unit in range(spans[block][0], spans[block][1] + 1)}
    assert sum(count_reads(blocks, spans) for blocks in taken.values()) <= len(units) + jumps


def test_many_units_are_shared_evenly() -> None:
    taken = take_all(UnitQueue(range(400), spans_of(17, [10] * 680)), [0, 1, 2, 3])
    assert min(map(len, taken.values())) > 80


@pytest.mark.parametrize("queue", [BlockQueue(range(12)), UnitQueue(range(12), spans_of(1, [3] * 4))])
def test_blocks_of_dead_worker_are_taken_again(queue: Queue) -> None:
    assert queue.take("dead") == 0
    queue.put_back("dead", [0])
    assert sorted(chain(*take_all(queue, [0, 1]).values())) == list(range(12))
