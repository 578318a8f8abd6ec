"""Journals: which lines are read, ignored and resolved."""

from __future__ import annotations

import os
import socket
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.prep.building.journal import FACTS, Author, BlockRecord, Journal, Journals, journal_line


def write(folder: Path, *records: BlockRecord, task: int = 0, tasks: int = 8) -> Path:
    before = set(folder.iterdir())
    writer = Journal(folder, task, tasks)
    for record in records:
        writer.append(record)
    writer.close()
    (path,) = set(folder.iterdir()) - before
    return path


def same(one: BlockRecord, other: BlockRecord) -> bool:
    return journal_line(one, 0.0) == journal_line(other, 0.0)


def test_records_round_trip(tmp_path: Path) -> None:
    facts = np.array([(2**64 - 1, 5, 640, 480, 6), (0, 0, 0, 0, 0)], FACTS)
    record = BlockRecord(3, facts, rejects=[(7, "bad\ttab\nline", "rejected")], boxes=[(6, "1,2,3,4")], sums=[1, 2, 3])
    before = time.time()
    path = write(tmp_path, record, BlockRecord(1), task=5)
    journals = Journals(tmp_path)
    assert journals.blocks() == [1, 3]
    (found,) = journals.records([3, 4])
    assert found.facts.tolist() == facts.tolist()
    assert same(found, record)
    assert journals.authors == {path: Author(5, 8, socket.gethostname(), os.getpid())}
    assert {block: line.path for block, line in journals.lines.items()} == {1: path, 3: path}
    assert all(before - 0.001 <= line.time <= time.time() + 0.001 for line in journals.lines.values())
    assert 2 not in journals.lines


def test_clock_before_1970_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: -86400.5)
    write(tmp_path, BlockRecord(3))
    assert Journals(tmp_path).blocks() == [3]


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), bit=st.integers(0, 7))
def test_line_with_wrong_digest_is_ignored(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("journals")
    path = write(folder, BlockRecord(0, rejects=[(0, "a" * 100, "left out")]), BlockRecord(1))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    assert Journals(folder).blocks() == ([0] if cut >= first else [])
    damaged = bytearray(whole)
    damaged[flip % len(whole)] ^= 1 << bit
    path.write_bytes(damaged)
    assert set(Journals(folder).blocks()) < {0, 1}


def test_each_journal_is_opened_once_and_alone(tmp_path: Path) -> None:
    records = [BlockRecord(block, crashes=block) for block in range(35)]
    for first in range(7):  # like seven workers that take turns
        write(tmp_path, *records[first::7])
    journals, before, found = Journals(tmp_path), len(os.listdir("/proc/self/fd")), []
    for record in journals.records(range(1, 35)):
        found.append((record.block, record.crashes))
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert sorted(found) == [(block, block) for block in range(1, 35)]
    assert sum(a % 7 != b % 7 for (a, _), (b, _) in pairwise(found)) == 6
    assert len(os.listdir("/proc/self/fd")) == before
