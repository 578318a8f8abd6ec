"""Rows cached in device memory: batches are bit-identical, and no pixels are transferred twice."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decodeonce import Loader
from decodeonce.loader.delivery import CachedDelivery, HostDevice
from decodeonce.loader.partition import Tail
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


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("tail", ["drop", "pad", "keep"])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_equal_those_without_cache(store: Path, shuffle: str, tail: Tail, rank: int) -> None:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "tail": tail, "seed": 4}
    settings |= {"partition": "range", "rank": rank, "world_size": 2}
    assert_same_batches(Loader(store, cache="device", **settings), Loader(store, **settings))


class CountingDevice(HostDevice):
    """The host as a device that counts the bytes of uploaded pixels."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.pixels = 0

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        self.pixels += tensor.nbytes if tensor.dtype == torch.uint8 else 0
        return super().upload(tensor)


def cached_on(device: Any, make: Callable[..., CachedDelivery] = CachedDelivery) -> Callable[..., CachedDelivery]:
    return partial(make, device=device, transform=None, rows=range(COUNT))


@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_each_row_is_transferred_once(store: Path, tail: Tail) -> None:
    device = CountingDevice()
    with replace_delivery(cached_on(device)):
        loader = Loader(store, batch_size=BATCH, tail=tail, seed=1, cache="device")
    row_bytes, uploaded, cached = 8 * 6 * 3, [], []
    with loader:
        for _ in range(6):
            list(loader)
            uploaded.append(device.pixels // row_bytes)
            cached.append(loader.stats()["memory"]["cached_rows"])
    assert uploaded == cached
    assert uploaded[0] == (COUNT if tail == "keep" else COUNT // BATCH * BATCH)
    assert uploaded[-1] == COUNT  # with "drop", a row can be first used in a later epoch, but is uploaded once


@pytest.mark.parametrize("settings", [{"weights": np.arange(COUNT)}, {"rows": range(5), "tail": "pad"}])
def test_repeated_rows_are_cached_once(store: Path, settings: dict[str, Any]) -> None:
    settings |= {"batch_size": BATCH, "seed": 4}
    with Loader(store, cache="device", **settings) as loader, Loader(store, **settings) as plain:
        seen: set[int] = set()
        for _ in range(4):
            found = contents(loader, 1)
            assert found == contents(plain, 1)
            seen.update(row for rows, *_ in found for row in rows)
            assert loader.stats()["memory"]["cached_rows"] == len(seen)


def test_unfinished_epoch_keeps_its_cached_rows(store: Path, images: NDArray[np.uint8]) -> None:
    device = CountingDevice()
    with replace_delivery(cached_on(device)):
        loader = Loader(store, batch_size=BATCH, tail="keep", cache="device")
    with loader:
        next(iter(loader))
        assert device.pixels < COUNT * 8 * 6 * 3
        for batch in loader:
            assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])
        assert device.pixels == COUNT * 8 * 6 * 3


def test_changing_a_batch_does_not_change_the_cache(store: Path, images: NDArray[np.uint8]) -> None:
    with Loader(store, batch_size=BATCH, tail="keep", cache="device") as loader:
        kept = list(loader)
        for batch in loader:
            batch.images.zero_()
        for batch in [*kept, *loader]:
            assert np.array_equal(batch.images.numpy(), images[batch.rows.numpy()])


def epochs_on_late_device(store: Path, make: Callable[..., CachedDelivery] = CachedDelivery) -> Contents:
    """Two epochs on a late device; the Loader is gone, and its memory is reused, before the device starts to work."""
    device = FakeDevice()
    seen: Contents = []

    def look(valid: int, *memory: NDArray[np.uint8]) -> None:
        rows, labels, pixels = (part.copy() for part in memory)
        seen.append((rows.view(np.int64).tolist(), valid, labels.view(np.int64).tolist(), pixels.tobytes()))

    with replace_delivery(cached_on(device, make)):
        loader = Loader(store, batch_size=BATCH, tail="keep", seed=4, cache="device")
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


@pytest.fixture
def expected(store: Path) -> Contents:
    return contents(Loader(store, batch_size=BATCH, tail="keep", seed=4), 2)


def test_late_device_gives_the_same_batches(store: Path, expected: Contents) -> None:
    assert epochs_on_late_device(store) == expected


@pytest.mark.parametrize("wait", [*WAITS[:3], CACHE_WAIT])  # there is no transform here that needs the fourth
def test_every_wait_is_necessary(store: Path, expected: Contents, wait: str) -> None:
    assert epochs_on_late_device(store, delivery_without(wait, "CachedDelivery")) != expected


def test_range_that_does_not_fit_on_the_host_is_an_error() -> None:
    with pytest.raises(ValueError, match=r'cache="device": \d+\.0 GB of rows do not fit; use more ranks'):
        CachedDelivery((4, 1 << 10, 1 << 20, 3), HostDevice(CPU), None, range(10**9))


def test_invalid_arguments_are_rejected(store: Path) -> None:
    unknown: Any = "host"
    with pytest.raises(ValueError, match="cache is 'host', expected one of None, 'device'"):
        Loader(store, batch_size=BATCH, cache=unknown)
    with pytest.raises(ValueError, match="cache='device' needs partition=\"range\": with"):
        Loader(store, batch_size=BATCH, cache="device", rank=0, world_size=2)
