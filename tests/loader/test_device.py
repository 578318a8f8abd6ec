"""Each wait of the side stream is necessary, as shown with a device that works as late as possible."""

import _thread
import dataclasses
import mmap
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils import backend_registration

from decodeonce import Batch, Loader
from decodeonce.loader.delivery import find_device
from decodeonce.loader.epoch import LoaderThread
from decodeonce.loader.partition import Tail
from decodeonce.loader.streams import (
    STREAM_SLOTS,
    CachedDelivery,
    Device,
    HostDevice,
    NoWait,
    StreamDelivery,
    pinned_slots,
)
from tests.conftest import COUNT
from tests.loader.deliveries import (
    CACHE_WAIT,
    WAITS,
    Contents,
    assert_same_batches,
    contents,
    delivery_without,
    replace_delivery,
)
from tests.loader.fake_device import FakeDevice, raw_bytes

BATCH = 7
CPU = torch.device("cpu")
Make = Callable[..., StreamDelivery]
Transform = Callable[[Batch], Batch]


def cached(make: Make = CachedDelivery) -> Make:
    return partial(make, rows=range(COUNT))


def late_epochs(store: Path, make: Make, device: FakeDevice, transform: Transform | None = None) -> Contents:
    """Two epochs on a late device. The consumer queues work on each batch, and drops it.

    The Loader is gone, and the memory of its cache is reused, before the device has to work.
    """
    seen: Contents = []

    def look(valid: int, *memory: NDArray[np.uint8]) -> None:
        rows, labels, pixels = (part.copy() for part in memory)
        seen.append((rows.view(np.int64).tolist(), valid, labels.view(np.int64).tolist(), pixels.tobytes()))

    with replace_delivery(partial(make, device=device)):
        loader = Loader(store, batch_size=BATCH, tail="keep", seed=4, threads=2, cache="device", transform=transform)
    with loader:
        for _ in range(2):
            for batch in loader:
                memory = [raw_bytes(tensor) for tensor in (batch.rows, batch.labels, batch.images)]
                device.consumer.add(partial(look, batch.valid, *memory))
                del batch
    del loader
    other = device.empty((COUNT, 8, 6, 3))  # gets the memory of the cache if that is already free
    raw_bytes(other)[:] = 1
    device.consumer.run()
    return seen


def epochs_on_host(store: Path, added: int = 0) -> Contents:
    def add(batch: Batch) -> Batch:
        return dataclasses.replace(batch, images=batch.images + added)

    return contents(Loader(store, batch_size=BATCH, tail="keep", seed=4, transform=add), 2)


def add_constant(device: FakeDevice) -> Transform:
    """A transform that works on the device's streams. Its constant is computed on the consumer's stream."""
    constant = raw_bytes(holder := device.empty((1,), torch.uint8))
    device.consumer.add(lambda: constant.fill(7))

    def transform(batch: Batch, holder: torch.Tensor = holder) -> Batch:
        result = device.empty(tuple(batch.images.shape), torch.uint8)
        source, target = raw_bytes(batch.images), raw_bytes(result)
        device.current_stream().add(partial(np.add, source, constant, out=target))
        return dataclasses.replace(batch, images=result)

    return transform


@pytest.mark.parametrize("make", [StreamDelivery, cached()])
def test_transforms_run_between_copy_and_consumer(store: Path, make: Make) -> None:
    device = FakeDevice()
    assert late_epochs(store, make, device, add_constant(device)) == epochs_on_host(store, added=7)
    assert len(device.copied_on) == 1
    assert device.consumer not in device.copied_on


@pytest.mark.parametrize("wait", WAITS)
def test_every_wait_is_necessary(store: Path, wait: str) -> None:
    device = FakeDevice()
    assert late_epochs(store, delivery_without(wait), device, add_constant(device)) != epochs_on_host(store, added=7)


@pytest.mark.parametrize("wait", [*WAITS[:3], CACHE_WAIT])  # there is no transform here that needs the fourth
def test_every_wait_of_the_cache_is_necessary(store: Path, wait: str) -> None:
    assert late_epochs(store, cached(), FakeDevice()) == epochs_on_host(store)
    assert late_epochs(store, cached(delivery_without(wait, "CachedDelivery")), FakeDevice()) != epochs_on_host(store)


def test_failing_transform_gives_its_slot_back(store: Path) -> None:
    calls: list[Batch] = []

    def fail_once(batch: Batch) -> Batch:
        calls.append(batch)
        if len(calls) == 1:
            raise LookupError("not this one")
        return dataclasses.replace(batch)

    with replace_delivery(partial(StreamDelivery, device=FakeDevice())):
        loader = Loader(store, batch_size=BATCH, transform=fail_once)
    with loader:
        with pytest.raises(LookupError, match="not this one"):
            list(loader)
        assert len(list(loader)) == COUNT // BATCH
        assert loader.stats()["memory"]["slots"] == STREAM_SLOTS


@pytest.mark.parametrize("height", [1, 8])
def test_slots_share_one_block_of_pinned_memory(height: int) -> None:
    slots = pinned_slots(HostDevice(CPU), (BATCH, height, 6, 3))
    made = [slots.take() for _ in range(STREAM_SLOTS)]
    assert {slot.memory.untyped_storage().data_ptr() for slot in made} == {made[0].memory.data_ptr()}
    for number, slot in enumerate(made):
        assert (slot.memory.shape, slot.memory.is_contiguous()) == ((BATCH, height, 6, 3), True)
        assert (slot.memory.data_ptr() - made[0].memory.data_ptr()) % mmap.PAGESIZE == 0
        slot.pixels[:] = number
    assert [slot.memory.unique().tolist() for slot in made] == [[0], [1], [2]]


def test_keep_ignores_tensors_on_the_host() -> None:
    Device(torch.device("cuda:0")).keep(torch.ones(1), None)


def test_missing_device_index_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)
    assert find_device("cuda") == torch.device("cuda:2")
    assert find_device("cuda:3") == torch.device("cuda:3")
    with pytest.raises(ValueError, match=r'device "cuda:4" does not exist: this machine has 4, "cuda:0" to "cuda:3"'):
        find_device("cuda:4")


def test_unknown_or_missing_device_is_rejected(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='device is \'gpu\', expected "cpu", "cuda"'):
        Loader(store, batch_size=BATCH, device="gpu")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r'device "cuda" is not available: torch .* finds only cpu here'):
        Loader(store, batch_size=BATCH, device="cuda")


# ---- Memory is bounded, although the host queues the work of many steps. The filler waits for the device without harm


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("make", [StreamDelivery, cached()], ids=["copies", "cache"])
def test_memory_is_bounded_while_the_device_is_behind(
    store: Path, make: Make, transformed: bool, prefetch: int
) -> None:
    device = FakeDevice()
    transform = add_constant(device) if transformed else None
    with replace_delivery(partial(make, device=device)):
        loader = Loader(store, batch_size=BATCH, prefetch=prefetch, cache="device", transform=transform)
    with loader:
        for _ in range(9):
            loader.peek()
        for _ in range(3):
            for batch in loader:
                del batch
            next(iter(loader))
    # What a batch is made from, the rows or the batch before the transform, is freed when it was sent.
    assert device.count(BATCH * 8 * 6 * 3) <= prefetch + 2 + transformed + (make is not StreamDelivery)


def test_all_batches_can_be_kept(store: Path) -> None:
    with replace_delivery(partial(StreamDelivery, device=FakeDevice())):
        loader = Loader(store, batch_size=BATCH, seed=4, prefetch=1)
    with loader:
        kept = list(loader)
        assert len({batch.images.data_ptr() for batch in kept}) == len(kept) == COUNT // BATCH


class BusyEvent(NoWait):
    """An event that is done at the last of `queries`."""

    def __init__(self, queries: Iterator[bool]) -> None:
        self._queries = queries

    def query(self) -> bool:
        return next(self._queries)


class BusyDevice(HostDevice):
    """The host as a device. Each of the consumer's events is done when it was queried many times."""

    def __init__(self, queries: Callable[[], Iterator[bool]]) -> None:
        super().__init__(CPU)
        self._queries = queries

    def record(self) -> BusyEvent:
        return BusyEvent(self._queries())


class StuckDevice(BusyDevice):
    """A device that never follows: `asked` is set when the filler waits for it."""

    def __init__(self, call: Callable[[], object] = lambda: None) -> None:
        super().__init__(self._never)
        self.asked, self._call = threading.Event(), call

    def _never(self) -> Iterator[bool]:
        while True:
            if not self.asked.is_set():
                self.asked.set()
                self._call()
            yield False


def join_threads() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, LoaderThread):
            thread.join(60)
            assert not thread.is_alive()


def start_waiting(store: Path) -> tuple[Loader, Iterator[Batch]]:
    """A Loader whose filler waits for a device that never follows, and its iterator."""
    device = StuckDevice()
    with replace_delivery(partial(StreamDelivery, device=device)):
        loader = Loader(store, batch_size=4, prefetch=2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    assert device.asked.wait(60)
    return loader, batches


ENDS: dict[str, Callable[[Loader], object]] = {
    "close": Loader.close,
    "state": lambda loader: loader.load_state_dict(loader.state_dict()),
    "epoch": iter,
    "nothing": lambda loader: None,
}


@pytest.mark.parametrize("end", ENDS)
def test_waiting_for_the_device_ends_with_the_epoch(store: Path, end: str) -> None:
    loader, batches = start_waiting(store)
    ENDS[end](loader)
    del batches
    join_threads()
    loader.close()


def test_ctrl_c_ends_an_epoch_that_waits_for_the_device(store: Path) -> None:
    device = StuckDevice(_thread.interrupt_main)
    with replace_delivery(partial(StreamDelivery, device=device)):
        loader = Loader(store, batch_size=4, prefetch=1)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    join_threads()
    loader.close()


def test_waiting_for_the_device_does_not_count_as_waiting_for_batches(store: Path) -> None:
    device = BusyDevice(lambda: iter([*[False] * 40, True]))
    with replace_delivery(partial(StreamDelivery, device=device)):
        loader = Loader(store, batch_size=4, prefetch=1)
    with loader:
        list(loader)
        stats = loader.stats()
    assert stats["yielded"]["seconds"] > 0.4
    assert stats["waited"]["batches"] > 10
    assert stats["waited"]["time_share"] < 0.5


# ---- Every name of torch that class Device uses exists


def test_every_name_exists_also_without_an_accelerator() -> None:
    names = "current_accelerator current_device_index current_stream device_count is_available set_stream"
    methods = [(torch.accelerator, name) for name in names.split()]
    for backend in (torch, torch.cuda, torch.xpu):
        methods += [(backend.Stream, "record_event"), (backend.Stream, "wait_event")]
        methods += [(backend.Event, "synchronize"), (backend.Event, "query")]
    for owner, name in methods:
        assert callable(getattr(owner, name))


def test_every_call_for_tensors_reaches_a_device() -> None:
    """The device meta has no values, but shapes."""
    device = Device(torch.device("meta"))
    cache, places = device.empty((5, 2)), device.upload(torch.arange(3))
    device.put(cache, places, device.upload(torch.zeros((3, 2), dtype=torch.uint8)))
    gathered = device.gather(cache, places)
    assert (gathered.shape, gathered.dtype, gathered.device.type) == ((3, 2), torch.uint8, "meta")


@pytest.mark.parametrize("shape", [(8, 6, 3), (3, 5, 3), (16,), (1,)])
def test_rows_of_any_size_are_put_and_gathered(shape: tuple[int, ...]) -> None:
    device, rows = HostDevice(CPU), torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    cache = torch.zeros((9, *shape), dtype=torch.uint8)
    device.put(cache, places := torch.tensor([8, 0, 3]), rows[1:4])
    assert torch.equal(cache[places], rows[1:4])
    gathered = device.gather(cache, torch.tensor([0, 3, 1, 0]))
    assert gathered.dtype == torch.uint8
    assert torch.equal(gathered, cache[[0, 3, 1, 0]])


# ---- Rows cached in device memory: batches are bit-identical, and no pixels are transferred twice


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("tail", ["drop", "pad", "keep"])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_equal_those_without_cache(store: Path, shuffle: str, tail: Tail, rank: int) -> None:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "tail": tail, "seed": 4}
    settings |= {"partition": "range", "rank": rank, "world_size": 2}
    assert_same_batches(Loader(store, cache="device", **settings), Loader(store, **settings))


class CountingDevice(HostDevice):
    """The host as a device that counts transfers, and the bytes of pixels in them."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.transfers = self.pixels = 0

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        self.transfers += 1
        self.pixels += tensor.nbytes if tensor.dtype == torch.uint8 else 0
        return super().upload(tensor)


@pytest.mark.parametrize("settings", [{}, {"weights": np.arange(COUNT)}])
def test_batch_takes_two_transfers(store: Path, settings: dict[str, Any]) -> None:
    device = CountingDevice()
    with replace_delivery(partial(StreamDelivery, device=device)):
        loader = Loader(store, batch_size=BATCH, **settings)
    with loader:
        batches = list(loader)
    assert device.transfers == 2 * len(batches)


@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_each_row_is_transferred_once(store: Path, tail: Tail) -> None:
    device = CountingDevice()
    with replace_delivery(partial(cached(), device=device)):
        loader = Loader(store, batch_size=BATCH, tail=tail, seed=1, cache="device")
    row_bytes, uploaded, kept = 8 * 6 * 3, [], []
    with loader:
        for _ in range(6):
            list(loader)
            uploaded.append(device.pixels // row_bytes)
            kept.append(loader.stats()["memory"]["cached_rows"])
    assert uploaded == kept
    assert uploaded[0] == (COUNT if tail == "keep" else COUNT // BATCH * BATCH)
    assert uploaded[-1] == COUNT  # with "drop", a row can be first used in a later epoch, but is uploaded once


@pytest.mark.parametrize("settings", [{"weights": np.arange(COUNT)}, {"rows": [3, 9, 40, 41, 59], "tail": "pad"}])
def test_repeated_rows_are_cached_once(store: Path, settings: dict[str, Any]) -> None:
    settings |= {"batch_size": BATCH, "seed": 4}
    with Loader(store, cache="device", **settings) as loader, Loader(store, **settings) as plain:
        seen: set[int] = set()
        for _ in range(4):
            found = contents(loader, 1)
            assert found == contents(plain, 1)
            seen.update(row for rows, *_ in found for row in rows)
            assert loader.stats()["memory"]["cached_rows"] == len(seen)


def test_cached_rows_stay_after_an_unfinished_epoch_and_changes_of_a_batch(
    store: Path, images: NDArray[np.uint8]
) -> None:
    device = CountingDevice()
    with replace_delivery(partial(cached(), device=device)):
        loader = Loader(store, batch_size=BATCH, tail="keep", cache="device")
    with loader:
        next(iter(loader))
        assert device.pixels < COUNT * 8 * 6 * 3
        kept = list(loader)
        assert device.pixels == COUNT * 8 * 6 * 3
        for batch in loader:
            batch.images.zero_()
        for batch in [*kept, *loader]:
            assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])
        assert device.pixels == COUNT * 8 * 6 * 3


def test_range_that_does_not_fit_on_the_host_is_an_error() -> None:
    with pytest.raises(ValueError, match=r'cache="device": \d+\.0 GB of rows do not fit; use more ranks'):
        CachedDelivery((4, 1 << 10, 1 << 20, 3), HostDevice(CPU), 3, range(10**9))


def test_invalid_caches_are_rejected(store: Path) -> None:
    unknown: Any = "host"
    with pytest.raises(ValueError, match="cache is 'host', expected one of None, 'device'"):
        Loader(store, batch_size=BATCH, cache=unknown)
    with pytest.raises(ValueError, match='cache="device" needs partition="range": with'):
        Loader(store, batch_size=BATCH, cache="device", rank=0, world_size=2)


REACHED = """\
device toy:0
streams toy:0 True
event Event toy
synchronize: Backend doesn't support synchronizing events.
query: True
pinned: You should register `PrivateUse1HooksInterface`by `RegisterPrivateUse1HooksInterface` and implement \
`getPinnedMemoryAllocator` at the same time for PrivateUse1.
pin: You should register `PrivateUse1HooksInterface`by `RegisterPrivateUse1HooksInterface` and implement \
`getPinnedMemoryAllocator` at the same time for PrivateUse1.
tensors toy:0 (3, 2)
calls empty, copy of cpu memory, non_blocking=True, copy of cpu memory, non_blocking=True, index_copy_, index_select, \
record_stream of Stream
"""


@pytest.mark.long
def test_every_call_reaches_the_accelerator() -> None:
    """The accelerator is written in Python. It has streams and events, but can neither wait for one nor pin memory."""
    if torch.accelerator.is_available() or not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has an accelerator, or cannot register one that is written in Python")
    command = [sys.executable, "-m", "tests.loader.python_accelerator"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, REACHED), done.stderr
