"""Threads, slots and files of a Loader: their reuse, their end, and errors."""

import copy
import gc
import os
import pickle
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from packaging.version import Version
from torch.profiler import ProfilerActivity, profile

from decodeonce import Batch, Loader, StoreError, open_store
from decodeonce.loader.buffers import Slots, page_aligned_slot
from decodeonce.loader.epoch import Epoch, Filler, LoaderThread, timed
from decodeonce.loader.loader import make_delivery
from decodeonce.loader.meter import Meter
from decodeonce.loader.partition import Progress, StepRows, make_partition
from decodeonce.loader.readers import Call, MmapReader, Reader, ReaderName
from decodeonce.store import add_column
from tests.conftest import COUNT
from tests.loader.conftest import RunForked
from tests.open_files import open_files
from tests.stores import make_store, random_images


def drain(loader: Loader) -> None:
    for _ in loader:
        pass


def test_slots_are_reused_also_after_unfinished_epochs(store: Path) -> None:
    with Loader(store, batch_size=4, prefetch=2) as loader:
        drain(loader)
        assert loader.stats()["memory"]["slots"] == 4
        addresses = [batch.images.data_ptr() for _ in range(5) for batch in loader]
        assert len(set(addresses)) <= 4
        assert {address % 4096 for address in addresses} == {0}
        assert len(addresses) == 5 * COUNT // 4
        for steps in range(40):
            begin(loader, steps % 7)
        assert loader.stats()["memory"]["slots"] == 4


def begin(loader: Loader, steps: int) -> None:
    for _, _ in zip(range(steps), loader, strict=False):
        pass


def test_kept_batches_do_not_change(store: Path, images: NDArray[np.uint8]) -> None:
    with Loader(store, batch_size=4, prefetch=2) as loader:
        views = [(batch.rows, batch.images[1:, :2].permute(0, 3, 1, 2).numpy()) for batch in loader]
        batches = list(loader)
        for _ in range(3):
            drain(loader)
    for rows, part in views:
        assert np.array_equal(part, images[rows.numpy()][1:, :2].transpose(0, 3, 1, 2))
    for batch in batches:
        assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])


def make_slots(size: int) -> Slots:
    return Slots(lambda: page_aligned_slot((3, 5, 7, 3)), size)


def test_slots_are_reused_if_the_user_always_holds_more_of_them_than_are_kept() -> None:
    free = make_slots(2)
    held = [free.lend_rows(free.take(), 2) for _ in range(5)]
    for _ in range(20):
        del held[0]
        held.append(free.lend_rows(free.take(), 2))
    assert free.made == 5


def test_lent_slots_free_memory_if_closed_or_surplus() -> None:
    free = make_slots(1)
    lent = [free.lend_rows(free.take(), 2) for _ in range(3)]
    pixels = [weakref.ref(array.base) for array in lent]
    while lent:
        lent.pop()
    assert [array() is None for array in pixels] == [False, True, True]
    last = free.lend_rows(free.take(), 2)
    free.clear()
    assert pixels[0]() is not None
    del last
    assert pixels[0]() is None


def join_dropped() -> None:
    """Wait for the threads of dropped epochs, which end after their current batch."""
    while threads := [thread for thread in threading.enumerate() if isinstance(thread, LoaderThread)]:
        with suppress(RuntimeError):  # the thread is listed, but not started yet
            threads[0].join(60)


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_loader_leaves_no_threads_or_files(store: Path, reader: ReaderName) -> None:
    def kept() -> tuple[int, int, int]:
        mapped = Path("/proc/self/maps").read_text().count(str(store))
        return threading.active_count(), len(open_files()), mapped

    list(Loader(store, batch_size=4, reader=reader))  # torch and NumPy open some files on first use
    gc.collect()
    before = kept()
    loader = Loader(store, batch_size=4, reader=reader)
    for epoch in range(30):
        begin(loader, epoch % 5)
        join_dropped()
        assert threading.active_count() == before[0]
    batches = iter(loader)  # is kept when the Loader is closed
    next(batches)
    loader.close()
    assert not any(thread.name.startswith("decodeonce-copy") for thread in threading.enumerate())
    join_dropped()
    assert kept() == before
    assert not loader._delivery.slots._free
    for _ in range(10):  # Loaders that are neither closed nor exhausted
        next(iter(Loader(store, batch_size=4, reader=reader)))
    gc.collect()
    join_dropped()
    assert kept() == before


def test_new_epoch_or_state_ends_the_running_epoch(store: Path) -> None:
    with Loader(store, batch_size=4) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        with pytest.raises(RuntimeError, match="a new epoch of this Loader was started"):
            next(first)
        assert len(list(second)) == COUNT // 4
        with pytest.raises(StopIteration):
            next(second)
        third = iter(loader)
        next(third)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(RuntimeError, match=r"load_state_dict\(\) was called"):
            next(third)
        assert len(list(loader)) == COUNT // 4 - 1


def test_closed_loader_raises_and_keeps_its_batches(store: Path, images: NDArray[np.uint8]) -> None:
    loader = Loader(store, batch_size=4, reader="pread")
    batches = iter(loader)
    batch = next(batches)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="the Loader was closed"):
        next(batches)
    with pytest.raises(RuntimeError, match="this Loader is closed; create a new one"):
        iter(loader)
    assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])
    assert loader.state_dict()["rows_consumed"] == 4
    assert loader.stats()["yielded"]["batches"] == 1


class CustomBaseException(BaseException):
    """An exception that `except Exception` does not catch."""


STEP = StepRows(np.arange(4), 4, 0)


def make_filler(store: Path, steps: Iterable[StepRows], calls: Callable[..., list[Call]] | None = None) -> Filler:
    """A started filler of batches of 4 rows on the host, whose reader has the method `calls`."""
    reader = MmapReader(open_store(store), 1)
    if calls is not None:
        vars(reader)["calls"] = calls
    delivery = make_delivery(torch.device("cpu"), (4, 8, 6, 3), 3)
    filler = Filler(steps, reader, delivery, Meter(), prefetch=3)
    progress = Progress(make_partition("global", range(4), 4, 0, 1, "drop"))
    vars(filler)["kept"] = epoch = Epoch(filler, progress)  # a filler whose epoch is gone ends
    filler.start(epoch)
    return filler


def test_closing_wakes_a_thread_that_waits_for_a_batch(store: Path) -> None:
    planning, proceed = threading.Event(), threading.Event()

    def steps() -> Iterator[StepRows]:
        yield STEP
        planning.set()
        proceed.wait()
        yield STEP

    filler = make_filler(store, steps())
    received: list[Any] = []
    consumer = threading.Thread(target=lambda: received.append(filler.ready.get()), daemon=True)
    consumer.start()
    planning.wait()
    stopper = threading.Thread(target=filler.stop)
    stopper.start()
    while not filler._stopped:
        pass
    proceed.set()
    for thread in (stopper, consumer):
        thread.join(10)
    assert "RuntimeError('this epoch was ended by another thread" in repr(received)


def make_calls(*calls: Callable[[], object]) -> Callable[..., list[Call]]:
    """The method `calls` of a reader: one of `calls` per step, then calls that do nothing."""
    left = iter(calls)
    return lambda rows, out: [next(left, lambda: None)]


def test_finalizer_can_end_an_epoch_in_a_thread_that_the_filler_waits_for(store: Path) -> None:
    """The garbage collector can run in any thread; here it collects the epoch in a thread that copies its rows."""
    created, done = threading.Event(), threading.Event()
    fillers: list[Filler] = []

    def collect() -> None:
        created.wait()
        fillers[0].stop()
        done.set()

    fillers.append(make_filler(store, [STEP] * 5, make_calls(collect)))
    created.set()
    assert done.wait(30)
    fillers[0].stop()  # a Loader calls this when it is closed or starts a new epoch
    assert fillers[0]._ended


def interrupt() -> None:
    raise KeyboardInterrupt


def test_queued_hints_are_skipped_when_an_epoch_ends(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, proceed = threading.Event(), threading.Event()
    hinted: list[int] = []
    monkeypatch.setattr(Reader, "hint", lambda self, rows: lambda: hinted.append(len(rows)))

    def read() -> None:
        reading.set()
        proceed.wait()

    steps = [replace(STEP, hints=hints) for hints in ([np.arange(1)], [np.arange(2)] * 50, [])]
    filler = make_filler(store, steps, make_calls(read))
    reading.wait()
    filler.request_stop()
    proceed.set()
    filler.stop()
    assert hinted == [1]


def test_failing_hint_is_ignored(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hinted: list[int] = []

    def fail() -> None:
        hinted.append(1)
        raise CustomBaseException("no such device")

    monkeypatch.setattr(Reader, "hint", lambda self, rows: fail)
    with Loader(store, batch_size=4) as loader:
        assert len(list(loader)) == COUNT // 4
    assert len(hinted) == COUNT // 4


def test_epoch_that_lost_a_batch_does_not_continue(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loader(store, batch_size=4) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loader._delivery, "receive", lambda sent: interrupt())
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        with pytest.raises(RuntimeError, match="this epoch has ended: KeyboardInterrupt"):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        assert len(list(loader)) == COUNT // 4 - 1  # the resumed epoch has all remaining batches


def test_steps_that_fail_to_start_give_their_slot_back(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Reader, *rest: object) -> None:
        raise StoreError("a shard is missing")

    with Loader(store, batch_size=4, prefetch=2) as loader:
        for _ in range(8):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Reader, "calls", fail)
                with pytest.raises(StoreError, match="a shard is missing"):
                    list(loader)
        drain(loader)
        assert loader.stats()["memory"]["slots"] == 4


def test_store_passed_to_a_loader_stays_open(store: Path, images: NDArray[np.uint8]) -> None:
    opened = open_store(store)
    for _ in range(2):
        with Loader(opened, batch_size=4) as loader:
            assert len(list(loader)) == COUNT // 4
    assert np.array_equal(opened.images[7], images[7])


@pytest.mark.parametrize("kind", [LookupError, CustomBaseException])
def test_errors_in_the_filler_are_raised_at_the_next_batch(store: Path, kind: type[BaseException]) -> None:
    def fail(batch: Batch) -> Batch:
        if len(seen) == 3:
            raise kind("the fourth")
        seen.append(batch)
        return replace(batch)

    seen: list[Batch] = []
    threads = threading.active_count()
    with Loader(store, batch_size=4, transform=fail) as loader:
        batches = iter(loader)
        assert [next(batches).rows.tolist() for _ in range(3)] == [batch.rows.tolist() for batch in seen]
        with pytest.raises(kind, match="the fourth"):
            next(batches)
        join_dropped()
        assert threading.active_count() == threads
        with pytest.raises(RuntimeError, match=r"this epoch has ended: .*: the fourth"):
            next(batches)
        seen.clear()
        assert loader.state_dict()["rows_consumed"] == 12


def test_stop_iteration_in_a_transform_is_an_error(store: Path) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        drain(Loader(store, batch_size=4, transform=lambda batch: next(iter(()))))


def test_transform_runs_without_gradients(store: Path) -> None:
    weight = torch.ones(1, requires_grad=True)
    with Loader(store, batch_size=4, transform=lambda batch: replace(batch, images=batch.images * weight)) as loader:
        assert not any(batch.images.requires_grad for batch in loader)


def test_transform_must_return_a_batch_of_tensors(store: Path) -> None:
    pair: Any = (STEP, STEP)
    returned: dict[str, Callable[[Batch], Any]] = {
        "transform returned Tensor, expected a Batch": lambda batch: batch.images,
        "a Batch that contains tuple, expected only tensors": lambda batch: replace(batch, images=pair),
    }
    for message, transform in returned.items():
        with pytest.raises(TypeError, match=message):
            drain(Loader(store, batch_size=4, transform=transform))


@pytest.mark.parametrize("send", [copy.copy, copy.deepcopy, pickle.dumps, ForkingPickler.dumps])
def test_nothing_that_holds_slots_can_be_copied(store: Path, send: Callable[[object], object]) -> None:
    advice = "create the Loader in the process that uses it, and give a DataLoader with workers a StoreDataset"
    with Loader(store, batch_size=4) as loader:
        slots = loader._delivery.slots
        for part in (loader, iter(loader), slots, slots.take()):
            with pytest.raises(TypeError, match=f"be pickled or copied: {advice}"):
                send(part)


def test_epoch_raises_after_a_fork_but_the_loader_can_start_another(store: Path) -> None:
    with Loader(store, batch_size=4) as loader, Loader(store, batch_size=4) as plain:
        expected = [batch.rows.tolist() for batch in plain]
        batches = iter(loader)  # has threads that do not exist in the child
        next(batches)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(RuntimeError, match="before a fork"):
                    next(batches)
                loader.set_epoch(0)
                code = 0 if [batch.rows.tolist() for batch in loader] == expected else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == COUNT // 4 - 1


def test_exit_during_an_epoch_prints_nothing(run_forked: RunForked, store: Path) -> None:
    code = (
        "import dataclasses, sys; from decodeonce import Loader; "
        f"batches = iter(Loader({str(store)!r}, batch_size=1, prefetch=1000, transform=dataclasses.replace)); "
        "kept = [next(batches), next(batches)]; "
        "assert not {'PIL', 'decodeonce.prep'} & set(sys.modules), 'the loader imports prep or Pillow'"
    )
    assert run_forked(code) == (0, "", "")


def test_numbers_of_every_dtype_follow_their_rows(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s", random_images(10))
    kinds: list[type] = [bool, np.int8, np.uint16, np.uint32, np.uint64, np.int64, np.float16, np.float32, np.float64]
    columns: dict[str, NDArray[Any]] = {kind.__name__: np.arange(30).reshape(10, 3).astype(kind) for kind in kinds}
    for name, column in columns.items():
        add_column(path, name, column)
    opened = open_store(path)
    vars(opened)["columns"] = {**opened.columns, "name": np.array(["x"] * 10)}
    with Loader(opened, batch_size=7, tail="pad") as loader:
        for batch in loader:
            assert batch.columns.keys() == columns.keys()
            for name, column in columns.items():
                found, wanted = batch[name].numpy(), column[batch.rows]
                assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())


def test_stats_count_yielded_batches(store: Path) -> None:
    with Loader(store, batch_size=7, tail="keep", threads=2, reader="pread") as loader:
        assert loader.stats()["waited"]["time_share"] == loader.stats()["yielded"]["samples_per_s"] == 0
        list(loader)
        stats = loader.stats()
    yielded, waited, threads = stats["yielded"], stats["waited"], stats["threads"]
    assert yielded["batches"] == 9
    assert yielded["bytes"] == COUNT * 8 * 6 * 3
    assert stats["reader"] == {"name": "pread", "why": "requested", "kept": 1.0, "threads": 2}
    assert 1 <= waited["batches"] <= 9  # at least the first batch was not ready
    assert 0 < waited["time_share"] <= 1
    assert threads["seconds_transforming"] == 0
    assert 0 <= waited["queue_depth"] <= 3
    assert stats["memory"]["cached_rows"] == threads["cold_share"] == 0


def test_stats_are_rounded() -> None:
    meter = Meter(
        batches=3, rows=100, batches_ready=2, waits=2, seconds=7.12345, seconds_waited=1.5, seconds_reading=2 / 3
    )
    facts = meter.facts(row_bytes=48)
    yielded = {"batches": 3, "bytes": 4800, "seconds": 7.123, "samples_per_s": 14.038, "bytes_per_s": 674}
    assert facts["yielded"] == yielded
    assert facts["waited"] == {"batches": 2, "seconds": 1.5, "time_share": 0.211, "queue_depth": 0.667}
    assert facts["threads"]["seconds_reading"] == 0.667


def test_invalid_arguments_are_rejected(store: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"shuffle": "yes"}, "shuffle is 'yes', expected one of 'full', 'window', 'none'"),
        ({"partition": "node"}, "partition is 'node', expected one of 'global', 'range'"),
        ({"tail": "last"}, "tail is 'last', expected one of 'drop', 'pad', 'keep'"),
        ({"reader": "aio"}, "reader is 'aio', expected one of 'auto', 'pread', 'mmap'"),
        ({"batch_size": 0}, "batch_size is 0, expected a whole number of 1 or more"),
        ({"threads": 10**6}, "threads is 1000000, expected a whole number from 1 to 1000"),
        ({"prefetch": 10**9}, "prefetch is 1000000000, expected a whole number from 1 to 1000"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"seed": "x"}, "seed is 'x', expected a whole number"),
        ({"rank": 2, "world_size": 2}, "rank is 2 and world_size 2, expected 0 <= rank < world_size"),
        ({"rank": 2}, "rank is 2 and world_size None, expected both or neither"),
        ({"batch_size": 61}, r"batch_size is 61, but a rank gets only 60 rows"),
    ]
    for settings, message in wrong:
        with pytest.raises(ValueError, match=message):
            Loader(store, **{"batch_size": 4, **settings})
    for settings, message in wrong[:4]:  # before a store is opened or a device's memory is taken
        with pytest.raises(ValueError, match=message):
            Loader(store / "missing", batch_size=4, **settings)


def test_rank_and_world_size_come_from_the_launcher(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with Loader(store, batch_size=4, shuffle="none") as loader:
        assert (loader.rank, loader.world_size, len(loader)) == (2, 3, 5)
        assert next(iter(loader)).rows.tolist() == [8, 9, 10, 11]


# ---- The meter: times, the bottleneck sentence and marks in a profiler trace

HALF = Meter(batches=9, seconds=10, seconds_waited=5, seconds_sending=1, seconds_reading=10)
ALL = replace(HALF, seconds_waited=10, seconds_sending=2, seconds_reading=16, seconds_reading_cpu=4, hints=9)
CASES = {
    "unknown: too early to tell: 0 of": Meter(),
    "unknown: too early to tell: 3 of the first 4 batches were yielded": Meter(batches=3, seconds=1),
    "training: only 4% of 10.0 s was spent waiting": Meter(batches=9, seconds=10, seconds_waited=0.4),
    "transfer: 50% of 10.0 s was spent waiting": replace(HALF, seconds_sending=8, seconds_reading_cpu=9),
    "storage: 100% of 10.0 s was spent waiting for batches, and reading threads were blocked for 75%": replace(
        ALL, cold=2
    ),
    "copy: 100% of 10.0 s was spent waiting for batches, and 2 threads": ALL,
    "copy: 6% of 10.0 s was spent waiting for batches, and 2 threads": replace(
        ALL, seconds_waited=0.6, seconds_reading_cpu=15, hints=0
    ),
    "transform: 50% of 10.0 s was spent waiting for batches, and the transform took 8.0 s": replace(
        HALF, seconds_transforming=8
    ),
}


@pytest.mark.parametrize("beginning", CASES)
def test_bottleneck_sentences(beginning: str) -> None:
    assert CASES[beginning].bottleneck(threads=2, transfers=True).startswith(beginning)
    on_host = CASES[beginning].bottleneck(threads=2, transfers=False)
    assert on_host.startswith(beginning.replace("transfer: ", "copy: "))
    assert "device" not in on_host


def test_bottleneck_names_a_slow_transform_with_the_share_from_stats(store: Path) -> None:
    def slow(batch: Batch) -> Batch:
        end = time.perf_counter() + 0.1  # stats() gives milliseconds, and the share below is of a few batches
        while time.perf_counter() < end:
            pass
        return replace(batch)

    with Loader(store, batch_size=15, transform=slow) as loader:
        assert loader.bottleneck().startswith("unknown")
        list(loader)
        stats, message = loader.stats(), loader.bottleneck()
    share, seconds = stats["waited"]["time_share"], stats["yielded"]["seconds"]
    assert share == pytest.approx(stats["waited"]["seconds"] / seconds, abs=0.01)
    said = re.match(r"transform: (\d+)% of ([\d.]+) s was spent waiting", message)
    assert said is not None
    assert int(said[1]) == pytest.approx(100 * share, abs=0.6)  # stats() has rounded it as well
    assert float(said[2]) == pytest.approx(seconds, abs=0.051)
    assert message.endswith("smaller rows (prep convert --size), more cores, a GPU")
    assert 0.3 <= stats["threads"]["seconds_transforming"] <= seconds


def test_timed_measures_elapsed_and_processor_time() -> None:
    def work() -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    seconds, cpu = timed(work)
    assert 0.015 < cpu < 0.05
    assert seconds > 0.015
    seconds, cpu = timed(lambda: threading.Event().wait(0.02))
    assert seconds > 0.015 > cpu


@pytest.mark.skipif(Version(torch.__version__) < Version("2.7"), reason="torch 2.6 cannot trace all threads")
def test_profiler_trace_has_marks(store: Path) -> None:
    gc.collect()  # threads of a Loader from an earlier test continue reading when its batches are collected
    # Without this setting, torch 2.7 and later only trace the thread that started the profiler.
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with (
        profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as trace,
        Loader(store, batch_size=7) as loader,
    ):
        list(loader)
    counts = {event.key: event.count for event in trace.key_averages()}
    steps = len(loader)
    assert counts["decodeonce.deliver"] == steps
    assert counts["decodeonce.copy"] == steps * loader.stats()["reader"]["threads"]
    assert 1 <= counts["decodeonce.wait"] <= steps
