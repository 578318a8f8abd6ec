"""Journals damaged by a kill, a full disk or another program."""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from decodeonce.errors import BuildError
from decodeonce.prep.building.journal import FACTS, BlockRecord, Journals, journal_line
from decodeonce.store.hashing import hexdigest
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
    # Lines of other programs. Their digests can be valid, because libFuzzer learns digests from comparisons.
    heads = (b"", b"1", b"1\t1.000", b"x\t1.000\t{}", b"1\tnan\t{}", b"-1\t1.000\t{}")
    yield b"".join(map(signed, heads)) + lines
    for facts in (b"\xff", b"{", b"[" * 5000, b"[]", b"{}", b'{"rejects":[1]}'):
        yield signed(b"1\t1.000\t" + facts)


def signed(head: bytes) -> bytes:
    """Return a line with a valid digest."""
    return b"%s\t%s\n" % (head, hexdigest(head).encode())


def TestOneInput(data: bytes) -> None:
    """Invalid lines are skipped, and invalid or contradicting records raise BuildError."""
    FILE.write_bytes(data)
    try:
        journals = Journals(FOLDER)
    except BuildError:
        return
    for block in journals.lines:
        with suppress(BuildError):
            assert len(list(journals.records([block]))) == 1
