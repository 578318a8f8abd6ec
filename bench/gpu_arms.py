"""The arms of bench/gpu.py: copies, transfers, augmentation and training on one device from one store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from bench.copies import drain
from bench.training import Run, Training
from decodeonce import Batch, Loader, Store
from decodeonce.augment import Augment, Normalize, RandomFlip, RandomResizedCrop


class Bench:
    """The measurements for one device and store."""

    def __init__(self, store: Store, device: torch.device, batch_size: int, steps: int) -> None:
        self.store, self.batch_size, self.steps = store, batch_size, steps
        self.training = Training(device)
        self.augment = Augment(RandomResizedCrop(224), RandomFlip(), Normalize(store, dtype=torch.bfloat16))
        self.loaders = {
            "from the store": self.loader(),
            "with Augment": self.loader(transform=self.augment),
            "from the cache": self.loader(cache="device", partition="range"),
        }
        self.constant = next(iter(self.loaders["from the store"]))
        drain(self.loaders["from the store"])  # a whole epoch, so that the Loader has all of its slots
        slots = self.loaders["from the store"].stats()["memory"]["slots"]
        shape = self.constant.images.shape
        self.pinned = torch.zeros((slots, *shape), dtype=torch.uint8, pin_memory=device.type != "cpu")
        self.target = torch.empty(shape, dtype=torch.uint8, device=device)

    def loader(self, **settings: Any) -> Loader:
        """Create a Loader."""
        return Loader(self.store, batch_size=self.batch_size, device=self.training.device, **settings)

    def timed(self, work: Callable[[], None]) -> float:
        """Return how long `work` takes, until the device has finished it."""
        self.training.finish()
        start = time.perf_counter()
        work()
        self.training.finish()
        return time.perf_counter() - start

    def copies(self) -> Run:
        """Copy the bytes of an epoch from a ring of buffers in pinned memory."""
        steps = len(self.loaders["from the store"])

        def work() -> None:
            for step in range(steps):
                self.target.copy_(self.pinned[step % len(self.pinned)], non_blocking=True)

        return {"bytes_per_s": steps * self.target.nbytes / self.timed(work)}

    def transfers(self) -> Run:
        """Load an epoch, including its start. A part of an epoch would also transfer batches that nobody gets."""
        loader = self.loaders["from the store"]
        return {"bytes_per_s": len(loader) * self.target.nbytes / self.timed(partial(drain, loader))}

    def first_batch(self) -> Run:
        """Open the store again, and load its first batch."""
        self.training.finish()
        start = time.perf_counter()
        with Loader(self.store.paths.root, batch_size=self.batch_size, device=self.training.device) as loader:
            batches = iter(loader)  # a reference, so that the epoch does not end within the time
            next(batches)
            self.training.finish_stream()
            return {"seconds": time.perf_counter() - start}

    def augmenting(self) -> Run:
        """Augment one batch."""

        def work() -> None:
            for _ in range(self.steps):
                self.augment(self.constant)

        return {"images_per_s": self.steps * self.batch_size / self.timed(work)}

    def same_batch(self, batch: Batch) -> Run:
        """Train on one batch."""
        return self.training.run(batch for _ in range(self.steps))

    def train(self, name: str) -> Run:
        """Train on the batches of a Loader."""
        before = self.batch_counts(name)
        run = self.training.run(self.batches(name, self.steps))
        waited, yielded = (now - then for now, then in zip(self.batch_counts(name), before, strict=True))
        return {**run, "steps_waited": waited / yielded}

    def batch_counts(self, name: str) -> tuple[int, int]:
        """Return how many batches a Loader has been waited for, and how many it has yielded."""
        stats = self.loaders[name].stats()
        return stats["waited"]["batches"], stats["yielded"]["batches"]

    def batches(self, name: str, steps: int) -> Iterator[Batch]:
        """Yield `steps` batches of a Loader, from several epochs if necessary."""
        while steps:
            for _, batch in zip(range(steps), self.loaders[name], strict=False):
                yield batch
                steps -= 1
