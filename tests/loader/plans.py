"""Compute the steps of ranks without a store or threads."""

from __future__ import annotations

from decodeonce.loader.order import Shuffle, derive_key, make_order
from decodeonce.loader.partition import PartitionKind, StepRows, Tail, make_partition, plan_steps


def rank_plan(
    count: int,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    partition: PartitionKind = "global",
    tail: Tail = "keep",
    shuffle: Shuffle = "full",
    seed: int = 0,
    block_rows: int = 4,
    consumed: int = 0,
) -> list[StepRows]:
    """The steps of one rank after the first `consumed` rows."""
    part = make_partition(partition, range(count), batch_size, rank, world_size, tail)
    key = derive_key(seed, 0, world_size, rank) if partition == "range" else derive_key(seed, 0)
    return list(plan_steps(make_order(shuffle, len(part.rows), block_rows, key), part, consumed, 0))


def valid_rows(plans: list[list[StepRows]]) -> list[int]:
    """The valid rows of all ranks."""
    return [row for plan in plans for step in plan for row in step.rows[: step.valid].tolist()]
