"""Journals damaged by a kill, a full disk or another program."""

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
    record = BlockRecord(0, np.ones(2, FACTS), rejects=[(1, "broken", "rejected")], sums=[1, 2, 3], squares=[1, 2, 3])
    lines = journal_line(record, 1.5) + journal_line(BlockRecord(1), 2.5)
    yield lines + journal_line(BlockRecord(1), 3.5)
    yield lines + journal_line(BlockRecord(1, crashes=1), 3.5)
    yield lines[:-9]


def TestOneInput(data: bytes) -> None:
    """Invalid lines are skipped, and invalid or contradicting records raise BuildError."""
    FILE.write_bytes(data)
    try:
        journals = Journals(FOLDER)
    except BuildError:
        return
    for block in journals.blocks():
        assert block in journals.lines
        with suppress(BuildError):
            assert len(list(journals.records([block]))) == 1
