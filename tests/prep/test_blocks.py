"""How rows are divided into blocks, shards and tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.prep.building.plan import Blocks, block_rows_for

MIB = 1 << 20


@pytest.mark.parametrize(
    ("count", "row_bytes", "rows"),
    [
        (1_281_167, 256 * 256 * 3, 170),  # 32 MiB
        (200, 256 * 256 * 3, 5),  # at least 1 MiB
        (20_000, 256 * 256 * 3, 78),  # 1/256 of the store
        (1_281_167, 225 * 225 * 3, 220),  # whole pages would take 4096 rows, so blocks share pages
        (1_281_167, 240 * 240 * 3, 208),  # whole pages: a multiple of 16 rows
        (10, 9000 * 9000 * 3, 1),
    ],
)
def test_block_sizes(count: int, row_bytes: int, rows: int) -> None:
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
