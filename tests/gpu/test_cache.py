"""Rows cached in the memory of a device: batches are bit-identical to those on the host, and rows are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from decodeonce import Loader
from decodeonce.loader.delivery import CachedDelivery, Device
from tests.conftest import COUNT
from tests.gpu.conftest import ROWS
from tests.gpu.consumer import consume, on_host
from tests.loader.deliveries import content

BATCH = 7


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("tail", ["drop", "pad", "keep"])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_equal_those_on_the_host(store: Path, device: torch.device, shuffle: str, tail: str, rank: int) -> None:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "tail": tail, "seed": 4}
    settings |= {"partition": "range", "rank": rank, "world_size": 2}
    with Loader(store, device=device, cache="device", **settings) as loader:
        assert consume(loader, 4, device) == on_host(store, 4, **settings)


def test_large_cache_equals_the_host_over_many_epochs(larger: Path, device: torch.device) -> None:
    with Loader(larger, batch_size=128, seed=1, device=device, cache="device") as loader:
        assert consume(loader, 10, device) == on_host(larger, 10, batch_size=128, seed=1)
        assert loader.stats()["cached_rows"] == ROWS


def test_unfinished_epoch_keeps_its_cached_rows(store: Path, device: torch.device) -> None:
    with Loader(store, batch_size=BATCH, tail="keep", device=device, cache="device") as loader:
        batches = iter(loader)
        next(batches)
        rest = consume(loader, 1, device)
        assert rest == on_host(store, 2, batch_size=BATCH, tail="keep")[len(loader) :]
        assert loader.stats()["cached_rows"] == COUNT


def test_changing_a_batch_does_not_change_the_cache(store: Path, device: torch.device) -> None:
    with Loader(store, batch_size=BATCH, tail="keep", seed=4, device=device, cache="device") as loader:
        kept = list(loader)
        for batch in loader:
            batch.images.zero_()
        kept += list(loader)
        expected = on_host(store, 3, batch_size=BATCH, tail="keep", seed=4)
    steps = len(expected) // 3
    assert [content(batch) for batch in kept] == expected[:steps] + expected[2 * steps :]


def test_rows_that_do_not_fit_are_an_error(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r'cache="device": \d+\.0 GB of rows do not fit; use more ranks'):
        CachedDelivery((4, 1 << 10, 1 << 20, 3), Device(device), None, range(10**9))
