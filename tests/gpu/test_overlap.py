"""Batches are copied to the device while the consumer computes, and the consumer's thread does not wait for either."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from decodeonce import Loader
from decodeonce.loader.augment import Augment, Normalize, RandomFlip
from tests.gpu.consumer import delay, reserve_pinned

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
    with Loader(store, batch_size=4, device=cuda, **settings) as loader:
        delay()
        kept = list(loader)  # allocates memory and loads kernels, which can wait for the device
        del kept
        torch.accelerator.synchronize()
        for _ in loader:
            if loader.steps_left == len(loader) - 1:
                delay(5)
        cast(Any, loader._delivery)._stream.synchronize()
        assert not torch.accelerator.current_stream().query()
