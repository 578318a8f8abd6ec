"""Who gets which block: each once, and neighbours together where what they share can only be read whole."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from decodeonce.prep.build import make_plan
from decodeonce.prep.build.block_queue import BlockQueue, block_spans
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import FolderSource
from tests.images import make_tree


def spans_of(block_rows: int, unit_rows: list[int]) -> dict[int, tuple[int, int]]:
    """The first and last unit of each block, for units of so many rows each."""
    units = [unit for unit, rows in enumerate(unit_rows) for _ in range(rows)]
    firsts = range(0, len(units), block_rows)
    return {k: (units[first], units[min(first + block_rows, len(units)) - 1]) for k, first in enumerate(firsts)}


def hand_out(queue: BlockQueue, turns: list[int]) -> dict[int, list[int]]:
    """Have workers ask in the order of `turns`, over and over, until nobody gets any more; what each was given."""
    given_: dict[int, list[int]] = {worker: [] for worker in turns}
    idle: set[int] = set()
    while len(idle) < len(given_):
        for worker in turns:
            others = {blocks[-1] for other, blocks in given_.items() if other != worker and blocks}
            block = queue.next(given_[worker][-1] if given_[worker] else None, others)
            if block is None:
                idle.add(worker)
            else:
                idle.clear()
                given_[worker].append(block)
    return given_


def reads_of(blocks: list[int], spans: dict[int, tuple[int, int]]) -> int:
    """How many units a worker reads that keeps the last one."""
    held, reads = -1, 0
    for block in blocks:
        first, last = spans[block]
        reads += last - first + (first != held)
        held = last
    return reads


turns = st.lists(st.integers(0, 4), min_size=1, max_size=12)


@given(st.integers(0, 40), turns)
def test_workers_take_blocks_in_order(count: int, order: list[int]) -> None:
    given_ = hand_out(BlockQueue(list(range(count)), {}), order)
    assert sorted(chain(*given_.values())) == list(range(count))
    assert all(blocks == sorted(blocks) for blocks in given_.values())


@given(st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=25), turns, st.data())
def test_each_unit_is_read_once_except_at_cuts(
    block_rows: int, unit_rows: list[int], order: list[int], data: st.DataObject
) -> None:
    spans = spans_of(block_rows, unit_rows)
    done = data.draw(st.sets(st.sampled_from(sorted(spans))))
    todo = sorted(set(spans) - done)
    given_ = hand_out(BlockQueue(todo, spans), order)
    assert sorted(chain(*given_.values())) == todo
    jumps = sum(k == 0 or blocks[k - 1] != block - 1 for blocks in given_.values() for k, block in enumerate(blocks))
    units = {unit for block in todo for unit in range(spans[block][0], spans[block][1] + 1)}
    assert sum(reads_of(blocks, spans) for blocks in given_.values()) <= len(units) + jumps


@given(st.integers(2, 60), turns)
def test_single_unit_goes_to_one_worker(count: int, order: list[int]) -> None:
    given_ = hand_out(BlockQueue(list(range(count)), spans_of(1, [count])), order)
    assert sorted(map(len, given_.values()))[-1] == count


def test_many_units_are_shared_evenly() -> None:
    given_ = hand_out(BlockQueue(list(range(400)), spans_of(17, [10] * 680)), [0, 1, 2, 3])
    assert min(map(len, given_.values())) > 80


def test_blocks_of_dead_worker_are_taken_again() -> None:
    for spans in ({}, spans_of(1, [3] * 4)):
        queue = BlockQueue(list(range(12)), spans)
        first = queue.next(None, ())
        assert first == 0
        queue.put_back([first])
        assert sorted(chain(*hand_out(queue, [0, 1]).values())) == list(range(12))


def test_samples_read_one_at_a_time_have_no_spans(tmp_path: Path) -> None:
    plan = make_plan(FolderSource(make_tree(tmp_path / "src") / "train"), tmp_path / "out", Recipe(height=8, width=8))
    assert block_spans(plan, [0]) == {}
