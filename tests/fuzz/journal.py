"""Journals damaged by a kill, a full disk or another program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from decodeonce.errors import BuildError
from decodeonce.prep.building.journal import FACTS, BlockRecord, Journals, journal_line
from tests.fuzz import scratch

FOLDER = scratch("journal")
FILE = FOLDER / "0of1-host-1-00000000.log"


def seeds() -> Iterator[bytes]:
    """Yield the lines of two blocks, one of them twice, and the same with the last line truncated."""
    record = BlockRecord(0, np.ones(2, FACTS), rejects=[(1, "broken")], sums=[1, 2, 3], squares=[1, 2, 3])
    lines = journal_line(record, 0, 1.5) + journal_line(BlockRecord(1), 0, 2.5) + journal_line(BlockRecord(1), 1, 3.5)
    yield lines
    yield lines[:-9]


def TestOneInput(data: bytes) -> None:
    """Invalid lines are skipped, and invalid records raise BuildError."""
    FILE.write_bytes(data)
    journals = Journals(FOLDER)
    for block in journals.blocks():
        assert block in journals
        assert journals.round(block) >= 1
        with suppress(BuildError):
            journals.record(block)
    assert len(list(journals.times())) == len(journals.blocks())
