"""Read-ahead requests the right rows, early enough, once, and only if they are not in the page cache."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from decodeonce import Loader, open_store
from decodeonce.loader import partition as partition_module
from decodeonce.loader import readers
from decodeonce.loader.order import WINDOW_BLOCKS, Shuffle, WindowOrder, derive_key
from decodeonce.loader.partition import AHEAD_BYTES, StepRows, blocks_ahead, make_partition, plan_steps, rows_ahead
from decodeonce.loader.readers import CHECK_EVERY, CHECKED_ROWS, Reader, ReaderName
from tests.conftest import COUNT
from tests.stores import make_store, random_images

ROW_BYTES = 8 * 6 * 3


@given(st.lists(st.integers(1, 300), max_size=60), st.sampled_from([1, ROW_BYTES, 196608, AHEAD_BYTES]))
def test_steps_are_yielded_after_enough_later_rows_are_requested(sizes: list[int], row_bytes: int) -> None:
    steps = [StepRows(np.arange(size), size, number) for number, size in enumerate(sizes)]
    requested: list[int] = []
    numbers = []
    for step in rows_ahead(iter(steps), row_bytes):
        numbers.append(step.epoch)
        requested += map(len, step.hints)
        ahead = sum(requested[len(numbers) :]) * row_bytes
        assert ahead >= AHEAD_BYTES or len(requested) == len(steps)
        assert ahead < AHEAD_BYTES + 300 * row_bytes  # not more than needed
    assert numbers == list(range(len(steps)))
    assert requested == sizes


@given(st.integers(1, 4000), st.integers(1, 30), st.integers(1, 70), st.integers(0, 2**64 - 1), st.data())
@settings(max_examples=40)
def test_whole_blocks_are_requested_once_and_before_their_rows(
    count: int, block_rows: int, batch_size: int, key: int, data: st.DataObject
) -> None:
    partition = make_partition("range", range(2 * count), batch_size, 1, 2, "keep")
    order = WindowOrder(len(partition.rows), block_rows, key)
    consumed = data.draw(st.integers(0, partition.steps() - 1)) * batch_size
    requested: list[int] = []
    steps = list(plan_steps(order, partition, consumed, 0))
    row_bytes = data.draw(st.sampled_from([1, AHEAD_BYTES // 7, 2 * AHEAD_BYTES]))
    for number, step in enumerate(blocks_ahead(iter(steps), order, partition, consumed, row_bytes)):
        assert step.rows is steps[number].rows
        for rows in step.hints:
            assert 0 < len(rows) <= max(1, AHEAD_BYTES // row_bytes)
            requested += rows.tolist()
        assert set(step.rows.tolist()) <= set(requested)
        assert len(requested) <= (number + 1) * batch_size + (2 * WINDOW_BLOCKS + 1) * block_rows
    assert len(requested) == len(set(requested))
    blocks = {(row - count) // block_rows for row in requested}
    expected = {row for block in blocks for row in range(block * block_rows, min(count, (block + 1) * block_rows))}
    assert {row - count for row in requested} == expected
    windows = order.windows(np.arange(count))
    remaining = order.at(np.flatnonzero(windows >= windows[consumed])) + count  # this window and all later ones
    assert sorted(requested) == sorted(remaining.tolist())


def test_window_is_requested_while_the_previous_one_is_read() -> None:
    partition = make_partition("global", range(10 * WINDOW_BLOCKS * 8), 8, 0, 1, "drop")
    order = WindowOrder(len(partition.rows), 8, derive_key(5))
    steps = blocks_ahead(plan_steps(order, partition, 0, 0), order, partition, 0, ROW_BYTES)
    counts = [sum(map(len, step.hints)) for step in steps]
    assert counts[0] <= (WINDOW_BLOCKS + 2) * 8
    assert set(counts[1 : 8 * WINDOW_BLOCKS]) == {8}  # block by block, never a whole window at once


@pytest.mark.parametrize("blocks", [3, 2 * WINDOW_BLOCKS, 1000])
def test_windows_fit_if_two_fit_into_half_of_the_memory(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order = WindowOrder(8 * blocks, 8, derive_key(5))
    twice = 2 * min(blocks, 2 * WINDOW_BLOCKS) * 8 * ROW_BYTES
    for memory, fit in ((twice, True), (twice - 1, False), (None, True)):
        monkeypatch.setattr(partition_module, "available_memory", lambda memory=memory: memory)
        assert partition_module.windows_fit(order, ROW_BYTES) is fit


Requests = list[tuple[str, int, int]]
Cold = tuple[Path, NDArray[np.uint8]]


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Read-ahead requests to the kernel: file name, offset, bytes."""
    calls: Requests = []
    advise = os.posix_fadvise

    def note(fd: int, offset: int, nbytes: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            calls.append((os.path.basename(os.readlink(f"/proc/self/fd/{fd}")), offset, nbytes))
        advise(fd, offset, nbytes, advice)

    monkeypatch.setattr(os, "posix_fadvise", note)
    return calls


@contextmanager
def reader_of(path: Path) -> Iterator[Reader]:
    reader = Reader(open_store(path), 1)
    yield reader
    reader.close()


def hint_rows(reader: Reader, *rows: int) -> None:
    """Read rows ahead as the threads of a Loader do."""
    if hint := reader.hint(np.array(rows, np.int64)):
        hint()


@pytest.fixture
def reader(store: Path) -> Iterator[Reader]:
    with reader_of(store) as reader:
        yield reader


def fail_cache_checks(monkeypatch: pytest.MonkeyPatch, *errors: int) -> list[int]:
    """Make the first checks of the page cache fail with these errors (0: none); return the offsets of all checks."""
    offsets: list[int] = []

    def check(fd: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        offsets.append(offset)
        if len(offsets) <= len(errors) and (code := errors[len(offsets) - 1]):
            raise OSError(code, os.strerror(code))
        return 1

    monkeypatch.setattr(os, "preadv", check)
    return offsets


def test_all_rows_are_requested_if_one_is_cold(
    reader: Reader, requested: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_cache_checks(monkeypatch, 0, 0, errno.EAGAIN)
    hint_rows(reader, 3, 4, 9, 24, 25, 26)
    assert requested == [
        ("images-00000.npy", 4096 + 3 * ROW_BYTES, 2 * ROW_BYTES),
        ("images-00000.npy", 4096 + 9 * ROW_BYTES, ROW_BYTES),
        ("images-00000.npy", 4096 + 24 * ROW_BYTES, ROW_BYTES),
        ("images-00001.npy", 4096, 2 * ROW_BYTES),
    ]


def test_requests_are_not_larger_than_reads(store: Path, requested: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_cache_checks(monkeypatch, errno.EAGAIN)
    monkeypatch.setattr(readers, "read_ahead_bytes", lambda path: 1000)
    with reader_of(store) as reader:
        hint_rows(reader, *range(1, 20))
    start, end = 4096 + ROW_BYTES, 4096 + 20 * ROW_BYTES
    assert [request[1:] for request in requested] == [(at, min(1000, end - at)) for at in range(start, end, 1000)]


def test_cached_rows_are_not_requested(reader: Reader, requested: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = fail_cache_checks(monkeypatch)
    hint_rows(reader, *range(0, COUNT, 2))
    hint_rows(reader)
    assert requested == []
    assert len(offsets) == CHECKED_ROWS - 1  # 30 rows, every second one


def test_check_is_used_for_a_few_steps(reader: Reader, requested: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = fail_cache_checks(monkeypatch, errno.EAGAIN)  # only the first check finds a cold row
    for _ in range(2 * CHECK_EVERY):
        hint_rows(reader, 3)
    assert len(offsets) == 2
    assert len(requested) == CHECK_EVERY


def test_without_cache_checks_only_network_rows_are_requested(
    store: Path, requested: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    for remote, expected in ((None, 0), ("Lustre", 1)):
        monkeypatch.setattr(readers, "network_file_system", lambda path, remote=remote: remote)
        fail_cache_checks(monkeypatch, errno.EOPNOTSUPP)
        with reader_of(store) as reader:
            hint_rows(reader, 1, 2)
        assert len(requested) == expected


def test_read_ahead_ignores_a_missing_shard(tmp_path: Path, store: Path) -> None:
    with reader_of(shutil.copytree(store, tmp_path / "s")) as reader:
        os.unlink(tmp_path / "s" / "images-00001.npy")
        hint_rows(reader, 1, 30)


def is_cached(path: Path, offset: int) -> bool:
    with open(path, "rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def cold_store(tmp_path: Path) -> Cold:
    """A store of 40 rows of 48 KiB in two shards, none of them in the page cache."""
    images = random_images(40, shape=(128, 128, 3))
    path = make_store(tmp_path / "cold_store", images, shard_rows=20)
    for shard in path.glob("images-*"):
        with open(shard, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(path / "images-00001.npy", 4096 + 19 * images[0].nbytes):
        pytest.skip("this file system does not show what is cached, or does not drop cached pages")
    return path, images


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
def test_cold_store_is_requested_and_read(
    cold_store: Cold, requested: Requests, reader: ReaderName, shuffle: Shuffle, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, images = cold_store
    monkeypatch.setattr(readers, "read_ahead_bytes", lambda path: 1 << 20)  # no block is requested in pieces
    with Loader(path, batch_size=4, reader=reader, shuffle=shuffle) as loader:
        for batch in loader:
            assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])
        assert loader.stats()["threads"]["cold_share"] > 0
    names = {name for name, _, _ in requested}
    if shuffle == "none":  # reading the header of the first shard can make the kernel read its rows, too
        names.add("images-00000.npy")
    assert names == {"images-00000.npy", "images-00001.npy"}
    if shuffle == "window":
        assert {nbytes % (4 * images[0].nbytes) for _, _, nbytes in requested} == {0}  # blocks of 4 rows


def test_rows_are_requested_instead_of_blocks_if_windows_do_not_fit(
    cold_store: Cold, requested: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, images = cold_store
    monkeypatch.setattr(partition_module, "available_memory", lambda: 2 * images.nbytes - 2)
    with Loader(path, batch_size=4, shuffle="window") as loader:
        for batch in loader:
            assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])
    assert sum(nbytes for _, _, nbytes in requested) <= images.nbytes  # cached rows are not requested
    assert images[0].nbytes in {nbytes for _, _, nbytes in requested}
