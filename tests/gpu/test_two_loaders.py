"""Two Loaders at once on one device do not change each other's batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from decodeonce import Batch, Loader
from decodeonce.loader.augment import Augment, RandomCrop, RandomFlip
from tests.gpu.consumer import SIDE, consume, copied, on_host, work
from tests.loader.deliveries import Contents, content

TRAINING: dict[str, Any] = {"batch_size": 64, "seed": 1, "transform": Augment(RandomCrop(48), RandomFlip())}
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
