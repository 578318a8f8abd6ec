"""A consumer whose stream runs behind the host, and uses batches after the loop has dropped them."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decodeonce import Batch, Loader
from decodeonce.loader.streams import Device, pinned_slots
from tests.loader.deliveries import Contents, content, contents

# Products of matrices of this size keep an H200 busy for about 0.3 ms each in float32.
SIDE = 2048
# Cycles of the device's clock: at 2 GHz 0.2 s, in which the host queues the work of many small batches.
LATE = 400_000_000


def consume(loader: Loader, epochs: int, device: torch.device) -> Contents:
    """The contents of all batches, copied on the current stream of a busy device."""
    factor = torch.full((SIDE, SIDE), 1 / SIDE, device=device)
    copies: list[Batch] = []
    for _ in range(epochs):
        for batch in loader:
            factor = work(factor, batch)
            copies.append(copied(batch))
            del batch
    return [content(batch) for batch in copies]


def work(factor: Tensor, batch: Batch) -> Tensor:
    """Keep the device busy, and allocate and free memory, also as much as the batch has. Return a new `factor`."""
    for _ in range(3):
        factor = factor @ factor  # stays the same: all its elements are 1 / SIDE
        torch.full_like(batch.images, 255)
    return factor


def copied(batch: Batch) -> Batch:
    columns = {name: column.clone() for name, column in batch.columns.items()}
    images, labels, rows = batch.images.clone(), batch.labels.clone(), batch.rows.clone()
    return dataclasses.replace(batch, images=images, labels=labels, rows=rows, columns=columns)


def on_host(store: Path, epochs: int, **settings: Any) -> Contents:
    """The contents of the batches of a Loader with these settings on the host."""
    with Loader(store, **settings) as loader:
        return contents(loader, epochs)


def weigh(images: Tensor) -> Tensor:
    """A whole number for each image, which depends on every pixel and its place. It has no rounding errors."""
    weights = torch.arange(1, images[0].numel() + 1, device=images.device)
    return (images.flatten(1).to(torch.int64) * weights).sum(1)


def delay(times: int = 1) -> None:
    """Let the current CUDA stream wait for `times` * LATE cycles. The kernel has one thread, so nothing else waits."""
    torch.cuda._sleep(times * LATE)


def reserve_pinned(device: torch.device, shape: tuple[int, ...]) -> None:
    """Let torch allocate page-locked memory for slots of `shape` and for labels. It keeps the memory for later."""
    backend = Device(device)
    slots = [pinned_slots(backend, shape).take() for _ in range(2)]
    labels = [backend.pin(torch.zeros(shape[0], dtype=torch.int64)) for _ in range(64)]
    del slots, labels
