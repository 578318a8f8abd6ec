"""The meter: times, the bottleneck sentence and marks in a profiler trace."""

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from torch.profiler import ProfilerActivity, profile

from decodeonce import Batch, Loader
from decodeonce.loader.meter import Meter, timed

HALF = Meter(batches=9, seconds=10, seconds_waited=5, seconds_sending=1, seconds_reading=10)
ALL = replace(HALF, seconds_waited=10, seconds_sending=2, seconds_reading=16, seconds_reading_cpu=4, hints=9)
CASES = {
    "unknown: no batch": Meter(),
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

    with Loader(store, batch_size=20, transform=slow) as loader:
        assert loader.bottleneck().startswith("unknown")
        list(loader)
        stats, message = loader.stats(), loader.bottleneck()
    share, seconds = stats["waited"]["time_share"], stats["yielded"]["seconds"]
    assert share == pytest.approx(stats["waited"]["seconds"] / seconds, abs=0.01)
    assert message.startswith(f"transform: {share:.0%} of {seconds:.1f} s was spent waiting")
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
    never = threading.Event()
    seconds, cpu = timed(lambda: never.wait(0.02))
    assert seconds > 0.015
    assert cpu < 0.015


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
    assert counts["decodeonce.copy"] == steps
    assert counts["decodeonce.read"] == steps * loader.stats()["reader"]["threads"]
    assert 1 <= counts["decodeonce.wait"] <= steps
