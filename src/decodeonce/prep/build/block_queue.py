"""Which block goes to which worker next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from decodeonce.prep.build.plan import Plan
from decodeonce.store.images import runs

LOOK = 64  # blocks to each side of a run's middle that are looked at for a place to cut
Span = tuple[int, int]  # the first and the last read unit of a block


def block_spans(plan: Plan, blocks: Sequence[int]) -> dict[int, Span]:
    """The read units that the rows of each block lie in; empty where every sample is read by itself."""
    if not plan.facts["source"]["read_unit"]:
        return {}
    units = plan.rows["unit"]
    return {b: (int(units[plan.blocks[b].first]), int(units[plan.blocks[b].last - 1])) for b in blocks}


class BlockQueue:
    """The blocks not yet given out, ascending.

    Without `spans` they go out in their order. With them, what shares a read unit stays with one worker as far as it
    can: a worker goes on where it was, and one that comes new takes the further half of the longest run, cut where a
    unit ends, or else within a unit that is neither the run's first nor its last: this one is then read twice.
    """

    def __init__(self, blocks: Sequence[int], spans: dict[int, Span]) -> None:
        self._spans = spans
        self._runs: list[list[int]] = []  # each in reverse, so that the next one is at the end
        self.put_back(blocks)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def put_back(self, blocks: Sequence[int]) -> None:
        """Have these blocks given out again, before all others."""
        if not blocks:
            return
        if not self._spans:
            rest = self._runs.pop() if self._runs else []
            self._runs = [[*rest, *reversed(blocks)]]
            return
        for start, end in runs(np.diff(blocks) != 1):
            self._runs.append(list(reversed(blocks[start:end])))

    def next(self, after: int | None, others: Collection[int]) -> int | None:
        """A block for a worker whose last one was `after`; `others` are the last ones of all other workers.

        None where nothing can be taken from them without reading all of it twice.
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
        """How many blocks of a run, from its end, another worker may take: about half."""
        first, last = self._spans[run[-1]][0], self._spans[run[0]][1]
        half = len(run) // 2
        cuts = sorted(range(1, len(run)), key=lambda cut: abs(cut - half))
        between = [(cut, self._spans[run[cut]][1], self._spans[run[cut - 1]][0]) for cut in cuts[: 2 * LOOK]]
        clean = [cut for cut, before, after in between if before != after]
        inside = [cut for cut, before, after in between if first != before == after != last]
        return next(iter([*clean, *inside]), None)
