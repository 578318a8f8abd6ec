"""Batches on a busy device are bit-identical to those on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decodeonce import Loader
from tests.gpu.consumer import consume, on_host
from tests.loader.deliveries import content
from tests.stores import make_store, random_images

BATCH = 7


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("tail", ["drop", "pad", "keep"])
@pytest.mark.parametrize("partition", ["global", "range"])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_equal_those_on_the_host(
    store: Path, device: torch.device, shuffle: str, tail: str, partition: str, rank: int
) -> None:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": shuffle, "tail": tail, "seed": 4}
    settings |= {"partition": partition, "rank": rank, "world_size": 2}
    with Loader(store, device=device, **settings) as loader:
        assert consume(loader, 3, device) == on_host(store, 3, **settings)


@pytest.mark.parametrize("prefetch", [1, 3, 8])
def test_large_batches_equal_those_on_the_host_over_many_epochs(
    larger: Path, device: torch.device, prefetch: int
) -> None:
    with Loader(larger, batch_size=128, seed=1, device=device, prefetch=prefetch) as loader:
        assert consume(loader, 10, device) == on_host(larger, 10, batch_size=128, seed=1)


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
            assert (batch.images.dtype, batch.labels.dtype, batch.rows.dtype) == (
                torch.uint8,
                torch.int64,
                torch.int64,
            )
            assert np.array_equal(batch.columns["score"].cpu().numpy(), scores[batch.rows.cpu().numpy()])
