"""`prep bench load --device`: first batch, transfers and training steps, on simulated devices and clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodeonce import Loader
from decodeonce.cli.bench import epochs, load, steps
from decodeonce.cli.bench.epochs import LoaderSettings, find_share, run_loader
from decodeonce.cli.bench.load import measure_load
from decodeonce.cli.bench.load_results import load_lines, load_summary
from decodeonce.cli.bench.probes import TRANSFER_SLOTS, transfer_rate
from decodeonce.cli.bench.steps import run_steps, why_no_steps
from decodeonce.loader.delivery import HostDevice, NoWait, StreamDelivery
from tests.command import assert_fails, prep_process
from tests.loader.deliveries import replace_delivery
from tests.loader.fake_device import FakeDevice

HOST = torch.device("cpu")
rates = st.floats(1e3, 1e12)


class Clock:
    """A clock that only `sleep` and waits for a `SlowDevice` move. The process computes a quarter of the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now / 4

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Event(NoWait):
    """An event that runs a function when something waits for it."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.synchronize = wait  # type: ignore[method-assign]


class SlowDevice(HostDevice):
    """A device whose batches arrive `waits` seconds after they are requested."""

    def __init__(self, clock: Clock, waits: Iterator[float]) -> None:
        super().__init__(HOST)
        self._clock, self._waits = clock, waits

    def record(self) -> Event:
        return Event(lambda: self._clock.sleep(next(self._waits)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(steps, "time", clock)
    monkeypatch.setattr(epochs, "time", clock)
    return clock


def test_first_batch_counts_when_it_is_on_the_device(
    store: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "open_device", lambda _: SlowDevice(clock, chain([7.0], repeat(0.0))))
    how = LoaderSettings(batch_size=4, device="cpu", reader="auto", threads=None)
    assert run_loader(store, how, find_share(range(60), 60, 60), epochs=1).first_batch_s == 7.0


def test_late_steps_are_counted_after_the_first_batches(store: Path, clock: Clock) -> None:
    """Of the steps of 10 s, every other one waits for more than 5%; the first step of an epoch waits for 50 s."""
    waits = chain(repeat(100.0, 6), *repeat([0.4, 0.6], 4), [0.4, 50.0], repeat(0.0))
    with Loader(store, batch_size=4) as loader:
        found = run_steps(loader, SlowDevice(clock, waits), 10.0, 150.0)
    assert (found.steps, found.steps_waited) == (9, 4)
    assert found.step_wait_s == pytest.approx((5 * 0.4 + 4 * 0.6) / 9)
    assert found.processor_s_per_step == pytest.approx((10 * 10 + 5 * 0.4 + 4 * 0.6 + 50) / 10 / 4)


def test_few_long_steps_are_enough(store: Path, clock: Clock) -> None:
    with Loader(store, batch_size=20) as loader:  # two of the three steps of an epoch are counted
        found = run_steps(loader, SlowDevice(clock, repeat(0.0)), 10.0, 1.0)
    assert (found.steps, found.steps_waited, found.step_wait_s) == (5, 0, 0.0)


def test_steps_that_cannot_be_tried_have_a_reason(store: Path) -> None:
    with Loader(store, batch_size=4) as loader:
        assert why_no_steps(loader, 1.0, 3.0) == ""
        assert why_no_steps(loader, 2.0, 3.0) == "a step of 2 s is too long to try several; pass a smaller --batch-size"
    with Loader(store, batch_size=60) as loader:
        assert why_no_steps(loader, 0.0, 3.0) == "the rows are a single batch; pass a smaller --batch-size"


def test_steps_run_on_a_device_that_works_late(store: Path) -> None:
    device = FakeDevice()
    with replace_delivery(partial(StreamDelivery, device=device, transform=None)):
        loader = Loader(store, batch_size=4)
    with loader:
        found = run_steps(loader, device, 0.0, 0.01)
    assert found.steps >= found.steps_waited >= 5


class CountingDevice(HostDevice):
    """A device that notes how many of its copies are queued. Waiting for an event ends the copies before it."""

    def __init__(self) -> None:
        super().__init__(HOST)
        self.queued = self.done = self.most = 0

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        self.queued += 1
        self.most = max(self.most, self.queued - self.done)
        return tensor

    def record(self) -> Event:
        return Event(partial(setattr, self, "done", self.queued))


def test_plain_copies_are_queued_ahead_and_finished() -> None:
    device = CountingDevice()
    assert transfer_rate(device, (2, 8, 8, 3), 0.01) > 0
    assert device.most == TRANSFER_SLOTS
    assert device.done == device.queued > TRANSFER_SLOTS


def facts_of(**measured: Any) -> dict[str, Any]:
    """Facts of a store whose rows of 1,000 bytes fit into memory, read from a GPU machine."""
    facts: dict[str, Any] = {
        "row_bytes": 1000,
        "bytes": 10**9,
        "available_memory_bytes": 10**10,
        "fits_memory": True,
        "why_not_cold": "",
        "loader_cold_waits_for": None,
        "loader_cold_bytes_per_s": 9e6,
        "random_read_cold_bytes_per_s": 9e6,
        "loader_host_bytes_per_s": 80e6,
        "loader_warm_bytes_per_s": 19e6,
        "transfer_bytes_per_s": 20e6,
        "transfer_over_copies": 0.95,
        "gpu_samples_per_s": 3000.0,
        "steps": 35,
        "steps_waited": 0,
        "why_no_steps": "",
    }
    return {**facts, **measured}


def test_sentence_names_transfers_waits_and_limits() -> None:
    found = load_summary(facts_of())
    assert found["sentence"] == (
        "Every epoch is limited by the training step, at 3,000 images/s; the next limit is storage, at 9,000 images/s; "
        "with rows in memory, transfers reach 95% of plain pinned copies and 0 of 35 training steps waited for a batch"
    )
    assert (found["limits"], found["first_epoch_limits"], found["samples_per_s"]) == ("training", "training", 19000)
    slow = load_summary(facts_of(gpu_samples_per_s=5e4, steps=1, steps_waited=1))
    assert slow["limits"] == "transfer"
    assert "with all rows in memory, by the transfer to the device, at 19,000 images/s; with" in slow["sentence"]
    assert slow["sentence"].endswith("and 1 of 1 training step waited for a batch")
    none = load_summary(facts_of(transfer_over_copies=None, transfer_bytes_per_s=None, steps=None))
    assert none["sentence"].endswith("the next limit is storage, at 9,000 images/s")


@given(rates, rates, rates)
def test_loader_limits_at_its_own_rate(host: float, copies: float, reached: float) -> None:
    """A Loader that is slower than copies in memory and transfers alone is what limits fast training."""
    facts = facts_of(
        loader_host_bytes_per_s=host,
        transfer_bytes_per_s=copies,
        loader_warm_bytes_per_s=reached,
        gpu_samples_per_s=1e12,
    )
    found = load_summary(facts)
    assert found["limits"] == ("memory" if host <= copies else "transfer")
    assert f"at {min(host, copies, reached) / 1000:,.0f} images/s" in found["sentence"]


def test_device_is_measured(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Loader's batches stay on the host, which `find_device` calls a GPU."""
    monkeypatch.setattr(load, "find_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(load, "open_device", lambda _: HostDevice(HOST))
    how = LoaderSettings(batch_size=4, device="cpu", reader="auto", threads=None)
    facts = measure_load(store, how, 1e9, 0.02)
    assert facts["device"] == "cuda:0"
    assert facts["transfer_over_copies"] == facts["loader_warm_bytes_per_s"] / facts["transfer_bytes_per_s"]
    assert "with rows in memory, transfers reach " in facts["sentence"]
    output = "\n".join(load_lines(facts))
    assert "plain pinned copies to cuda:0" in output
    assert f": {facts['steps_waited']:,} of {facts['steps']:,} waited, " in output
    assert "None" not in output


def test_torch_that_cannot_be_imported_is_one_line(store: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    result = prep_process("bench", "load", store, PYTHONPATH=str(tmp_path))
    assert_fails(result, 1, "cannot be imported: libcudart.so.13: cannot open", "run: prep doctor")
