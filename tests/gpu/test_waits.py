"""Each wait of the side stream is necessary on a real device, too: without it, the consumer gets other pixels.

Streams are made late with a kernel that only spins, so that every run shows a missing wait. Nothing else may wait for
the device meanwhile. So all memory is allocated and all kernels are loaded before: CUDA loads a kernel when it is first
used, which can wait for the device
(https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html).
"""

import dataclasses
import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, Normalize, RandomFlip
from decodeonce.loader.streams import CachedDelivery, Device, StreamDelivery
from tests.conftest import COUNT
from tests.gpu.conftest import ROWS
from tests.gpu.consumer import copied, delay, on_host, reserve_pinned
from tests.loader.deliveries import CACHE_WAIT, WAITS, Contents, content, delivery_without, replace_delivery

BATCH = 4
ADDED = 7


def late_epoch(store: Path, device: torch.device, delivery: Callable[..., StreamDelivery] = StreamDelivery) -> Contents:
    """The second epoch of a Loader whose streams are late, as the consumer's stream sees it.

    These are the times when the streams work, in units of the delay. The host queues as much as slots permit at once.

    - 0 to 1: the consumer's stream is late, then computes the constant. The side stream waits for it. Without
      `wait_event(begun)`, the first batch gets the old constant. Without `copied.synchronize()`, slots get other rows
      before the side stream has copied them.
    - 1 to 4: the side stream transforms the first batch, and is late then. Without `wait_event(ready)`, the consumer's
      stream reads the second batch at 2, before it is copied.
    - 4 to 5: the consumer's stream is late. The side stream copies the other batches. Without `keep`, they overwrite
      the first one, which the loop has dropped.
    """
    constant = torch.empty(1, dtype=torch.uint8, device=device).fill_(0)
    side_is_late = iter([True])

    def add_constant(batch: Batch) -> Batch:
        result = dataclasses.replace(batch, images=batch.images + constant)
        if batch.epoch == 1 and next(side_is_late, False):
            delay(3)
        return result

    reserve_pinned(device, (BATCH, 8, 6, 3))
    with replace_delivery(partial(delivery, device=Device(device))):
        loader = Loader(store, batch_size=BATCH, seed=3, transform=add_constant)
    with loader:
        delay()
        seen = [copied(batch) for batch in loader]
        torch.accelerator.synchronize()
        targets = iter(seen)
        delay()
        constant.fill_(ADDED)
        for batch in loader:
            if loader.steps_left == len(loader) - 1:
                delay()
            overwrite(next(targets), batch)
            del batch
        torch.accelerator.synchronize()
    return [content(batch) for batch in seen]


def overwrite(target: Batch, batch: Batch) -> None:
    """Copy the tensors of `batch` into those of `target`, queued on the current stream."""
    for into, tensor in zip(target.tensors(), batch.tensors(), strict=True):
        into.copy_(tensor)


def epoch_on_host(store: Path) -> Contents:
    def add(batch: Batch) -> Batch:
        return dataclasses.replace(batch, images=batch.images + ADDED)

    both = on_host(store, 2, batch_size=BATCH, seed=3, transform=add)
    return both[len(both) // 2 :]


def test_batches_are_complete_on_late_streams(store: Path, cuda: torch.device) -> None:
    assert late_epoch(store, cuda) == epoch_on_host(store)


@pytest.mark.parametrize("wait", WAITS)
def test_every_wait_is_necessary(store: Path, cuda: torch.device, wait: str) -> None:
    assert late_epoch(store, cuda, delivery_without(wait)) != epoch_on_host(store)


def close_while_rows_are_copied(
    larger: Path, device: torch.device, delivery: Callable[..., CachedDelivery] = CachedDelivery
) -> tuple[bool, bool]:
    """Close a Loader whose side stream still has to copy rows into the cache, and allocate as much memory as that.

    Return whether this is the memory of the cache, and whether it keeps the values that the consumer writes at once.
    """
    third_is_queued = threading.Event()
    numbers = itertools.count()

    def transform(batch: Batch) -> Batch:
        number = next(numbers)
        if number == 0:
            delay(3)
        elif number == 2:
            third_is_queued.set()
        return dataclasses.replace(batch)

    shape = (ROWS, 64, 64, 3)
    ones = partial(torch.full, shape, 1, dtype=torch.uint8, device=device)
    assert bool((ones() == 1).all())  # loads the kernels
    delay()
    torch.accelerator.synchronize()
    torch.cuda.empty_cache()  # so that the only free memory of this size is that of the cache
    reserve_pinned(device, (BATCH, *shape[1:]))
    rows = range(ROWS)
    with replace_delivery(partial(delivery, device=Device(device), rows=rows)):
        loader = Loader(larger, batch_size=BATCH, seed=3, cache="device", transform=transform)
    address = cast(Any, loader._delivery)._cache.data_ptr()
    batches = iter(loader)  # an epoch ends when its iterator is dropped
    next(batches)
    assert third_is_queued.wait(60)
    loader.close()
    mine = ones()
    torch.accelerator.synchronize()
    return mine.data_ptr() == address, bool((mine == 1).all())


def test_memory_of_a_closed_cache_is_not_reused_too_early(larger: Path, cuda: torch.device) -> None:
    _, unchanged = close_while_rows_are_copied(larger, cuda)
    assert unchanged


def test_wait_of_the_cache_is_necessary(larger: Path, cuda: torch.device) -> None:
    is_reused, unchanged = close_while_rows_are_copied(larger, cuda, delivery_without(CACHE_WAIT, "CachedDelivery"))
    assert is_reused
    assert not unchanged


# ---- Batches are copied to the device while the consumer computes, and the consumer's thread does not wait for either

SETTINGS: dict[str, dict[str, Any]] = {
    "copies": {},
    "cache": {"cache": "device"},
    "augmentation": {"transform": Augment(RandomFlip(), Normalize("imagenet"))},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_side_stream_finishes_the_epoch_while_the_consumer_computes(
    store: Path, cuda: torch.device, settings: dict[str, Any]
) -> None:
    reserve_pinned(cuda, (4, 8, 6, 3))
    # With fewer batches ahead, the Loader would wait for the consumer's stream.
    with Loader(store, batch_size=4, device=cuda, prefetch=COUNT // 4, **settings) as loader:
        delay()
        kept = list(loader)  # allocates memory and loads kernels, which can wait for the device
        del kept
        torch.accelerator.synchronize()
        for _ in loader:
            if loader.steps_left == len(loader) - 1:
                delay(5)
        cast(Any, loader._delivery)._stream.synchronize()
        assert not torch.accelerator.current_stream().query()
