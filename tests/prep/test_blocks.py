"""How rows are divided into blocks, shards and tasks."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.prep.building.plan import Blocks, block_rows_for
from decodeonce.prep.building.pool import BlockQueue, Queue, UnitQueue

MIB = 1 << 20


def test_block_sizes() -> None:
    for count, row_bytes, rows in (
        (1_281_167, 256 * 256 * 3, 170),  # 32 MiB
        (200, 256 * 256 * 3, 5),  # at least 1 MiB
        (20_000, 256 * 256 * 3, 78),  # 1/256 of the store
        (1_281_167, 225 * 225 * 3, 220),  # whole pages would take 4096 rows, so blocks share pages
        (1_281_167, 240 * 240 * 3, 208),  # whole pages: a multiple of 16 rows
        (10, 9000 * 9000 * 3, 1),
    ):
        assert block_rows_for(count, row_bytes) == rows


@given(st.integers(1, 10**9), st.integers(1, 3 * 10**8))
def test_block_size_stays_in_bounds(count: int, row_bytes: int) -> None:
    rows = block_rows_for(count, row_bytes)
    assert rows >= 1
    assert rows == 1 or rows * row_bytes <= 64 * MIB
    if rows * row_bytes % 4096:
        assert rows * row_bytes <= max(32 * MIB, row_bytes)


@given(st.integers(1, 100_000), st.integers(1, 300_000), st.integers(1, 1 << 36))
def test_blocks_cover_all_rows_and_stay_in_one_shard(count: int, row_bytes: int, shard_size: int) -> None:
    blocks = Blocks.of(count, row_bytes, shard_size)
    assert blocks.shard_rows % blocks.block_rows == 0
    picked = sorted({0, len(blocks) // 2, len(blocks) - 1})
    for index in picked:
        block = blocks[index]
        assert (block.shard, block.offset) == blocks.place(block.first)
        assert blocks.place(block.last - 1)[0] == block.shard
        assert block.first == index * blocks.block_rows
    assert blocks[len(blocks) - 1].last == count
    with pytest.raises(IndexError):
        blocks[len(blocks)]


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_tasks_share_all_blocks_evenly(count: int, tasks: int) -> None:
    blocks = Blocks.of(count, MIB, 1 << 35)
    shares = [blocks.of_task(task, tasks) for task in range(tasks)]
    assert [block for share in shares for block in share] == list(range(len(blocks)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# ---- The block queue: each block is taken once, and blocks that share a read unit go to the same worker


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
def test_only_cuts_repeat_reads(block_rows: int, unit_rows: list[int], order: list[int], data: st.DataObject) -> None:
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
