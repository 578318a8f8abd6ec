"""Batches on a busy device are bit-identical to those on the host, copied or from the cache, with one Loader or two."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, RandomCrop, RandomFlip
from decodeonce.loader.streams import CachedDelivery, Device
from tests.conftest import COUNT
from tests.gpu.conftest import ROWS
from tests.gpu.consumer import SIDE, consume, copied, on_host, work
from tests.loader.deliveries import Contents, content
from tests.stores import make_store, random_images

BATCH = 7
WAYS = [("global", None), ("range", None), ("range", "device")]  # partitions, with and without a cache
AUGMENT = Augment(RandomCrop(48), RandomFlip(), seed=4)


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("tail", ["drop", "pad", "keep"])
@pytest.mark.parametrize(("partition", "cache"), WAYS)
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_equal_those_on_the_host(
    store: Path, device: torch.device, shuffle: str, tail: str, partition: str, cache: Any, rank: int
) -> None:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "tail": tail, "seed": 4}
    settings |= {"partition": partition, "rank": rank, "world_size": 2}
    with Loader(store, device=device, cache=cache, **settings) as loader:
        assert consume(loader, 4, device) == on_host(store, 4, **settings)


@pytest.mark.parametrize(
    "settings", [{"prefetch": 1}, {}, {"prefetch": 8}, {"cache": "device"}, {"transform": AUGMENT}]
)
def test_large_batches_equal_those_on_the_host_over_many_epochs(
    larger: Path, device: torch.device, settings: dict[str, Any]
) -> None:
    transform = settings.get("transform")
    with Loader(larger, batch_size=128, seed=1, device=device, **settings) as loader:
        found = consume(loader, 10, device)
        assert found == on_host(larger, 10, batch_size=128, seed=1, transform=transform)
        if "cache" in settings:
            assert loader.stats()["memory"]["cached_rows"] == ROWS


def test_consumer_can_use_its_own_stream(larger: Path, device: torch.device) -> None:
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(torch.Stream(device=device))
    try:
        with Loader(larger, batch_size=64, seed=1, device=device) as loader:
            assert consume(loader, 3, device) == on_host(larger, 3, batch_size=64, seed=1)
    finally:
        torch.accelerator.set_stream(before)


def test_kept_batches_do_not_change(larger: Path, device: torch.device) -> None:
    with Loader(larger, batch_size=128, seed=1, device=device) as loader:
        kept = [batch for _ in range(3) for batch in loader]
        consume(loader, 1, device)
    assert [content(batch) for batch in kept] == on_host(larger, 3, batch_size=128, seed=1)


def test_all_tensors_are_on_the_device(device: torch.device, tmp_path: Path) -> None:
    scores = np.arange(10, dtype=np.float32)
    store = make_store(tmp_path / "s", random_images(10), columns={"score": scores})
    with Loader(store, batch_size=5, device=device) as loader:
        for batch in loader:
            assert {tensor.device for tensor in batch.tensors()} == {device}
            assert [t.dtype for t in batch.tensors()[:3]] == [torch.uint8, torch.int64, torch.int64]
            assert np.array_equal(batch.columns["score"].cpu().numpy(), scores[batch.rows.cpu().numpy()])


def test_unfinished_epoch_keeps_its_cached_rows(store: Path, device: torch.device) -> None:
    with Loader(store, batch_size=BATCH, tail="keep", device=device, cache="device") as loader:
        batches = iter(loader)
        next(batches)
        rest = consume(loader, 1, device)
        assert rest == on_host(store, 2, batch_size=BATCH, tail="keep")[len(loader) :]
        assert loader.stats()["memory"]["cached_rows"] == COUNT


def test_rows_that_do_not_fit_are_an_error(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r'cache="device": \d+\.0 GB of rows do not fit; use more ranks'):
        CachedDelivery((4, 1 << 10, 1 << 20, 3), Device(device), 3, range(10**9))


TRAINING: dict[str, Any] = {"batch_size": 64, "seed": 1, "transform": AUGMENT}
VALIDATION: dict[str, Any] = {"batch_size": 100, "shuffle": "none", "tail": "keep"}


def test_two_loaders_in_turn(larger: Path, device: torch.device) -> None:
    """Validate in the middle of training, as many scripts do; the validation set is cached."""
    copies: tuple[list[Batch], list[Batch]] = ([], [])
    factor = torch.full((SIDE, SIDE), 1 / SIDE, device=device)
    training = Loader(larger, device=device, **TRAINING)
    validation = Loader(larger, device=device, cache="device", **VALIDATION)
    with training, validation:
        for _ in range(2):
            for batch in training:
                factor = work(factor, batch)
                copies[0].append(copied(batch))
                if training.steps_left % 8 == 0:
                    copies[1].extend(copied(other) for other in validation)
    assert [content(batch) for batch in copies[0]] == on_host(larger, 2, **TRAINING)
    assert [content(batch) for batch in copies[1]] == on_host(larger, 4, **VALIDATION)


def test_two_loaders_in_two_threads(larger: Path, device: torch.device) -> None:
    def run(settings: dict[str, Any]) -> Contents:
        torch.accelerator.set_stream(torch.Stream(device=device))  # each thread has its own current stream
        with Loader(larger, device=device, **settings) as loader:
            return consume(loader, 4, device)

    with ThreadPoolExecutor(2) as pool:
        for settings, found in zip((TRAINING, VALIDATION), pool.map(run, (TRAINING, VALIDATION)), strict=True):
            assert found == on_host(larger, 4, **settings)


@pytest.mark.parametrize("transform", [None, Augment(RandomCrop(48), RandomFlip(), paired={"mask": "nearest"})])
@pytest.mark.parametrize("cache", [None, "device"])
def test_masks_of_a_store_are_as_on_the_host(tmp_path: Path, device: torch.device, cache: Any, transform: Any) -> None:
    masks = np.ascontiguousarray(random_images(COUNT, shape=(64, 56, 3), seed=1)[..., 0])
    store = make_store(tmp_path / "s", random_images(COUNT, shape=(64, 56, 3)), paired={"mask": masks})
    settings: dict[str, Any] = {"batch_size": BATCH, "seed": 4, "transform": transform}
    with Loader(store, device=device, cache=cache, **settings) as loader, Loader(store, **settings) as host:
        for _ in range(3):
            for found, wanted in zip([copied(batch) for batch in loader], host, strict=True):
                assert torch.equal(found["mask"].cpu(), wanted["mask"])
                assert torch.equal(found.images.cpu(), wanted.images)
