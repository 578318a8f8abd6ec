"""Rows that are read with O_DIRECT are the same rows, whatever the disk, the kernel or another read does."""

import ctypes
import errno
import gc
import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from decodeonce import Loader, StoreError, open_store
from decodeonce.host import direct_alignment
from decodeonce.loader import direct, readers
from decodeonce.loader.aio import REQUEST, ReadQueue, fork_guard
from decodeonce.loader.buffers import Slot, page_aligned_slot
from decodeonce.loader.direct import THREADS_WITHOUT_AIO, DirectReader
from decodeonce.loader.readers import Choice, Reader, make_reader
from tests.disks import disk_with_sectors
from tests.loader.conftest import RunForked
from tests.stores import make_store, random_images

COUNT, ALL = 40, np.random.default_rng(0).permutation(40)
FITS, CROSSES = (64, 64, 3), (20, 30, 3)  # rows of 24 sectors, and of 1,800 bytes


@pytest.fixture(scope="module", params=[FITS, CROSSES], ids=["rows of whole sectors", "other rows"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.uint8]]:
    images = random_images(COUNT, shape=request.param)
    return make_store(tmp_path_factory.mktemp("direct") / "s", images, shard_rows=15), images


def read(path: Path, kept: float = 0.5, slot: Slot | None = None, threads: int = 3) -> NDArray[np.uint8]:
    """Return all rows in the order ALL."""
    store = open_store(path)
    reader = DirectReader(store, threads, kept=kept)
    out = (slot or page_aligned_slot((COUNT, *store.manifest.shape))).pixels
    try:
        for call in reader.calls(ALL, out):
            call()
    finally:
        reader.close()
    return out


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("aligned", [True, False])
def test_rows_are_equal(pair: tuple[Path, NDArray[np.uint8]], kept: float, aligned: bool) -> None:
    path, images = pair
    memory = page_aligned_slot((images.nbytes + 64,)).memory[0 if aligned else 64 :][: images.nbytes]  # pinned: 64
    assert np.array_equal(read(path, kept, Slot(memory.view(images.shape))), images[ALL])


def test_direct_reads_leave_the_page_cache_alone(tmp_path: Path) -> None:
    images = random_images(COUNT, shape=(128, 128, 3))
    path = make_store(tmp_path / "s", images, shard_rows=COUNT)
    reader = DirectReader(open_store(path), 1, kept=0.5)
    (call,) = reader.calls(ALL, page_aligned_slot(images.shape).pixels)  # opens the shard, which reads its start ahead
    with open(path / "images-00000.npy", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # looking reads nothing ahead
        call()
        middles = [4096 + row * images[0].nbytes + images[0].nbytes // 2 for row in range(COUNT)]
        cached = [_is_cached(file.fileno(), middle) for middle in middles]
    if not any(cached):
        pytest.skip("this file system does not show what is cached")
    assert cached == reader._are_kept(np.arange(COUNT)).tolist()


def _is_cached(fd: int, offset: int) -> bool:
    with suppress(OSError):
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
        return True
    return False


def test_set_of_kept_rows_contains_every_smaller_one(pair: tuple[Path, NDArray[np.uint8]]) -> None:
    rows, smaller = np.arange(10_000), np.zeros(10_000, bool)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        kept = DirectReader(open_store(pair[0]), 1, kept=share)._are_kept(rows)
        assert (kept >= smaller).all()
        assert abs(kept.mean() - share) < 0.02
        smaller = kept


def test_disk_with_sectors_of_4_kib(tmp_path: Path, pair: tuple[Path, NDArray[np.uint8]]) -> None:
    path, images = pair
    with disk_with_sectors(tmp_path, 4096, 32 << 20) as disk:
        copy = shutil.copytree(path, disk / "s")
        assert direct_alignment(copy / "images-00000.npy") == 4096
        assert np.array_equal(read(copy), images[ALL])
        gc.collect()


def test_file_system_without_direct_reads_is_read_with_pread(
    tmp_path: Path, pair: tuple[Path, NDArray[np.uint8]]
) -> None:
    with disk_with_sectors(tmp_path, 512, 32 << 20, "data=journal") as disk:
        with Loader(shutil.copytree(pair[0], disk / "s"), batch_size=8, reader="direct") as loader:
            found = loader.stats()["reader"]
            why = "requested, but this file system has no direct reads (Operation not supported)"
            assert (found["name"], found["why"], found["kept"]) == ("pread", why, 1.0)
            assert sum(len(batch.rows) for batch in loader) == COUNT
        gc.collect()


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOSYS, errno.EPERM])
def test_kernel_without_queues(
    pair: tuple[Path, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(most: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(direct, "ReadQueue", refuse)
    path, images = pair
    reader, choice = make_reader(open_store(path), Choice("direct", "requested", 0.5), 2, verify=False)
    assert choice["threads"] == reader.threads == THREADS_WITHOUT_AIO
    assert np.array_equal(read(path), images[ALL])
    reader.close()


def test_reads_that_the_kernel_refuses_are_repeated(
    pair: tuple[Path, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first reads are in flight when the descriptor of another shard turns out to be that of a folder."""
    path, images = pair
    opened = DirectReader.open

    def open_folder(self: DirectReader, rows: Any) -> list[int]:
        shards = opened(self, rows)
        if 1 in self._direct:
            self._direct[1] = os.open(path, os.O_RDONLY)
        return shards

    monkeypatch.setattr(DirectReader, "open", open_folder)
    assert np.array_equal(read(path, 0.0, threads=1), images[ALL])
    assert [one.message.rpartition(": ")[2] for one in caplog.records] == ["Invalid argument"]


def test_error_of_a_kept_row_waits_for_the_direct_reads(
    pair: tuple[Path, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, images = pair
    finished = list[int]()
    finish: Callable[[ReadQueue], NDArray[np.int64]] = ReadQueue.finish

    def record(queue: ReadQueue) -> NDArray[np.int64]:
        found = finish(queue)
        finished.extend(found.tolist())
        return found

    def fail(*args: Any) -> None:
        raise StoreError("a kept row")

    monkeypatch.setattr(ReadQueue, "finish", record)
    monkeypatch.setattr(Reader, "_read", fail)
    with pytest.raises(StoreError, match="a kept row"):
        read(path, 0.5, threads=1)
    assert len(finished) > 10
    assert min(finished) >= images[0].nbytes


def test_more_reads_than_a_queue_holds(pair: tuple[Path, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MOST_READS", 2)
    path, images = pair
    assert np.array_equal(read(path, 0.0, threads=1), images[ALL])


def fork_waits() -> bool:
    """Return whether a fork waits for reads in flight."""
    if ctypes.CDLL(None).pthread_rwlock_tryrdlock(*fork_guard.enter.args) == errno.EBUSY:
        return True
    fork_guard.leave()
    return False


def test_fork_waits_for_reads_in_flight(pair: tuple[Path, NDArray[np.uint8]]) -> None:
    queue, memory = ReadQueue(1), page_aligned_slot((4096,)).pixels
    requests = np.zeros(1, REQUEST)
    with open(pair[0] / "images-00000.npy", "rb") as file:
        requests["fd"], requests["address"], requests["nbytes"] = file.fileno(), memory.ctypes.data, 4096
        queue.start(requests)
        ended = list[int]()

        def fork() -> None:
            if not (child := os.fork()):
                os._exit(0)
            ended.append(os.waitpid(child, 0)[1])

        forking = threading.Thread(target=fork)
        forking.start()
        while not fork_waits():
            assert forking.is_alive()
        assert not ended
        assert queue.finish().tolist() == [4096]
        forking.join()
    assert ended == [0]


def test_children_of_forks_at_the_same_time_read() -> None:
    for _ in range(5):
        fork_guard.enter()
        ended = list[int]()

        def fork(ended: list[int] = ended) -> None:
            if not (child := os.fork()):
                signal.alarm(10)  # kills a child that waits forever
                fork_guard.enter()
                os._exit(0)
            ended.append(os.waitpid(child, 0)[1])

        forking = [threading.Thread(target=fork) for _ in range(3)]
        for thread in forking:
            thread.start()
        while not fork_waits():
            assert forking[0].is_alive()
        fork_guard.leave()
        for thread in forking:
            thread.join()
        assert ended == [0, 0, 0]


def test_child_of_a_fork_reads_and_ends_without_disturbing_its_parent(pair: tuple[Path, NDArray[np.uint8]]) -> None:
    path, images = pair
    reader = DirectReader(open_store(path), 1)
    first, second = (page_aligned_slot((COUNT, *images.shape[1:])).pixels for _ in range(2))
    (call,) = reader.calls(ALL, first)
    call()
    if not (child := os.fork()):
        with suppress(BaseException):
            del reader, call
            gc.collect()
            os._exit(0 if np.array_equal(read(path), images[ALL]) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (call,) = reader.calls(ALL, second)
    call()
    assert np.array_equal(second, images[ALL])


def test_loader_says_what_it_keeps(pair: tuple[Path, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, images = pair
    monkeypatch.undo()  # of the share that is fixed for tests
    monkeypatch.setattr(readers, "available_memory", lambda: images.nbytes)
    with Loader(path, batch_size=2, rows=range(COUNT // 2 - 1)) as loader:  # fewer than half of the memory
        assert loader.stats()["reader"]["name"] == "mmap"
    with Loader(path, batch_size=2, rows=range(COUNT // 2 + 2), prefetch=1) as loader:  # all can be kept
        assert (loader.stats()["reader"]["name"], loader.stats()["reader"]["kept"]) == ("pread", 1.0)
        assert loader.stats()["reader"]["why"].endswith("of available memory, but all rows can stay in memory")
    with Loader(path, batch_size=2, prefetch=3) as loader:
        found, slots = loader.stats()["reader"], 5 * 2 * images[0].nbytes
        assert found["name"] == "direct"
        assert found["kept"] == round(0.8 * (images.nbytes - slots) / images.nbytes, 3)
        for batch in loader:
            assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])
        assert loader.stats()["threads"]["cold_share"] > 0.5  # also if the kept rows are in memory


def test_small_store_on_a_host_needs_no_direct_reads_and_no_streams(run_forked: RunForked, store: Path) -> None:
    script = "import sys; from decodeonce import Loader; next(iter(Loader(sys.argv[1], batch_size=4)))\n"
    used = "print([f'decodeonce.loader.{name}' in sys.modules for name in ('direct', 'aio', 'streams')])"
    assert run_forked(script + used, store) == (0, "[False, False, False]\n", "")
