"""Decide which block each worker decodes next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from decodeonce.prep.build.plan import Plan
from decodeonce.store.images import runs

CUT_SEARCH = 64  # blocks to search on each side of a run's middle for a place to cut
Span = tuple[int, int]  # the first and the last read unit of a block


def block_spans(plan: Plan, blocks: Sequence[int]) -> dict[int, Span]:
    """Return the read units that hold the rows of each block; empty if samples are read one at a time."""
    if not plan.facts["source"]["read_unit"]:
        return {}
    units = plan.samples.rows["unit"]
    return {b: (int(units[plan.blocks[b].first]), int(units[plan.blocks[b].last - 1])) for b in blocks}


class BlockQueue:
    """The blocks that no worker has taken yet, in ascending order.

    Without `spans`, workers take blocks in order. With `spans`, blocks that share a read unit go to the same worker if
    possible. A worker continues with the block after its last one. A new worker takes the second half of the longest
    run of blocks. The run is cut where a read unit ends, or otherwise inside a unit that is neither the run's first nor
    its last. That unit is then read twice.

    Args:
        blocks: The blocks to decode.
        spans: First and last read unit of each block, from `block_spans`.
    """

    def __init__(self, blocks: Sequence[int], spans: dict[int, Span]) -> None:
        self._spans = spans
        self._runs: list[list[int]] = []  # each in reverse, so that the next one is at the end
        self.put_back(blocks)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def put_back(self, blocks: Sequence[int]) -> None:
        """Return blocks to the queue, ahead of all others."""
        if not blocks:
            return
        if not self._spans:
            rest = self._runs.pop() if self._runs else []
            self._runs = [[*rest, *reversed(blocks)]]
            return
        for start, end in runs(np.diff(blocks) != 1):
            self._runs.append(list(reversed(blocks[start:end])))

    def next(self, after: int | None, others: Collection[int]) -> int | None:
        """Take a block for a worker.

        Args:
            after: The worker's previous block, if any.
            others: The previous blocks of all other workers.

        Returns:
            The block, or None if the queue is empty or every remaining run would have to be read twice completely.
        """
        self._runs = [run for run in self._runs if run]
        if not self._runs:
            return None
        if not self._spans:
            return self._runs[0].pop()
        for run in self._runs:
            if after is not None and run[-1] == after + 1:
                return run.pop()
        for run in sorted(self._runs, key=len, reverse=True):
            if run[-1] - 1 not in others:
                return run.pop()
            if (cut := self._cut(run)) is not None:
                self._runs.append(run[:cut])
                del run[:cut]
                return self._runs[-1].pop()
        return None

    def _cut(self, run: list[int]) -> int | None:
        """Return how many blocks, about half, another worker may take from the end of a run; None if it cannot."""
        first, last = self._spans[run[-1]][0], self._spans[run[0]][1]
        half = len(run) // 2
        cuts = sorted(range(1, len(run)), key=lambda cut: abs(cut - half))
        between = [(cut, self._spans[run[cut]][1], self._spans[run[cut - 1]][0]) for cut in cuts[: 2 * CUT_SEARCH]]
        clean = [cut for cut, before, after in between if before != after]
        inside = [cut for cut, before, after in between if first != before == after != last]
        return next(iter([*clean, *inside]), None)
