"""Journals: which lines are read, ignored and resolved."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.prep.building import journal
from decodeonce.prep.building.journal import FACTS, BlockRecord, Journal, Journals, Writer, journal_line


def write(folder: Path, *records: tuple[BlockRecord, int], task: int = 0, tasks: int = 8) -> Path:
    before = set(folder.iterdir())
    writer = Journal(folder, task, tasks)
    for record, round_ in records:
        writer.append(record, round_)
    writer.close()
    (path,) = set(folder.iterdir()) - before
    return path


def same(one: BlockRecord, other: BlockRecord) -> bool:
    return journal_line(one, 0, 0.0) == journal_line(other, 0, 0.0)


def test_records_round_trip(tmp_path: Path) -> None:
    facts = np.array([(2**64 - 1, 5, 640, 480, 6), (0, 0, 0, 0, 0)], FACTS)
    record = BlockRecord(3, facts, rejects=[(7, "bad\ttab\nline")], boxes=[(6, "1,2,3,4")], sums=[1, 2, 3])
    before = time.time()
    path = write(tmp_path, (record, 0), (BlockRecord(1), 0), task=5)
    journals = Journals(tmp_path)
    assert journals.blocks() == [1, 3]
    assert journals.record(3).facts.tolist() == facts.tolist()
    assert same(journals.record(3), record)
    assert journals.writers == {path: Writer(5, 8, socket.gethostname(), os.getpid())}
    assert [(block, written) for block, written, _ in journals.times()] == [(1, path), (3, path)]
    assert all(before - 0.001 <= at <= time.time() + 0.001 for _, _, at in journals.times())
    assert 2 not in journals


def test_clock_before_1970_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: -86400.5)
    write(tmp_path, (BlockRecord(3), 0))
    assert Journals(tmp_path).blocks() == [3]


def test_only_chosen_journals_are_read(tmp_path: Path) -> None:
    for task in range(3):
        write(tmp_path, (BlockRecord(task), 0), task=task, tasks=3)
    write(tmp_path, (BlockRecord(7), 0), task=0, tasks=1)
    (tmp_path / "3of4-unfinished.tmp").write_bytes(b"not a journal")
    assert Journals(tmp_path).blocks() == [0, 1, 2, 7]
    assert Journals(tmp_path, lambda task, tasks: tasks == 1 or task == 2).blocks() == [2, 7]


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), bit=st.integers(0, 7))
def test_line_with_wrong_digest_is_ignored(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("journals")
    path = write(folder, (BlockRecord(0, left_out=[(0, "a" * 100)]), 0), (BlockRecord(1), 0))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    assert Journals(folder).blocks() == ([0] if cut >= first else [])
    damaged = bytearray(whole)
    damaged[flip % len(whole)] ^= 1 << bit
    path.write_bytes(damaged)
    assert set(Journals(folder).blocks()) < {0, 1}


def test_contradicting_records_are_redone(tmp_path: Path) -> None:
    good, other = BlockRecord(0), BlockRecord(0, crashes=1)
    write(tmp_path, (good, 0))
    write(tmp_path, (good, 0))
    assert 0 in Journals(tmp_path)
    write(tmp_path, (other, 0))
    disputed = Journals(tmp_path)
    assert 0 not in disputed
    assert disputed.blocks() == []
    assert disputed.round(0) == 1
    write(tmp_path, (other, 1))
    settled = Journals(tmp_path)
    assert same(settled.record(0), other)
    assert settled.round(1) == 0


def test_number_of_open_journals_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "OPEN_FILES", 3)
    records = [BlockRecord(block) for block in range(35)]
    for first in range(7):  # like seven workers that take turns
        write(tmp_path, *((record, 0) for record in records[first::7]))
    journals = Journals(tmp_path)
    before, opened = len(os.listdir("/proc/self/fd")), set()
    for record, expected in zip(journals.records(range(35)), records, strict=True):
        assert same(record, expected)
        opened.add(len(os.listdir("/proc/self/fd")) - before)
    assert opened == {1, 2, 3}
    assert len(os.listdir("/proc/self/fd")) == before
