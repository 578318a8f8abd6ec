"""A real build of a few pictures in a scratch folder: plan, workers, journals, everything but the finish."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from decodeonce.prep.build import Progress, Work, make_plan, work
from decodeonce.prep.entry import Entry
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source
from decodeonce.store.manifest import PictureClass

BLOCKS_A_WORKER = 4  # at least: the rate is that from the first block that is done to the last


class SampledSource(Source):
    """`source`, of which these samples alone are listed, again and again up to `rows`; its blocks have `block_rows`."""

    def __init__(self, source: Source, entries: Sequence[Entry], rows: int, block_rows: int) -> None:
        super().__init__(source.root)
        self.kind, self.read_unit = source.kind, source.read_unit
        self._source, self._entries, self._rows, self._block_rows = source, entries, rows, block_rows

    @property
    def top(self) -> Path:
        """The source's."""
        return self._source.top

    def facts(self) -> dict[str, Any]:
        """The source's: workers read from that."""
        return self._source.facts()

    def classes(self) -> tuple[PictureClass, ...]:
        """The source's."""
        return self._source.classes()

    def entries(self) -> Iterator[Entry]:
        """The samples."""
        return islice(cycle(self._entries), self._rows)

    def read(self, entry: Entry) -> bytes:
        """The source's bytes."""
        return self._source.read(entry)

    def block_rows(self, count: int, row_bytes: int) -> int:
        """What was asked for."""
        return self._block_rows


def trial_rate(
    source: Source, entries: Sequence[Entry], recipe: Recipe, folder: Path, *, rows: int, block_rows: int, workers: int
) -> float | None:
    """Pictures a second of a build of `rows` samples into `folder`; None where there were too few blocks to tell."""
    block_rows = max(1, min(block_rows, rows // (BLOCKS_A_WORKER * workers)))
    marks: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        if progress.new_rows and (not marks or progress.new_rows != marks[-1][1]):
            marks.append((time.perf_counter(), progress.new_rows))

    make_plan(SampledSource(source, entries, rows, block_rows), folder, recipe)
    work(folder, Work(workers=workers, max_bad="100%"), note)
    (first, before), (last, after) = marks[0], marks[-1]
    return (after - before) / (last - first) if last > first else None
