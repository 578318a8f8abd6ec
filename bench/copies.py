"""Copies in memory, which no loader can beat, and the iteration over a loader to compare with them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from decodeonce import Store
from decodeonce.loader.buffers import page_aligned_slot


class Copies:
    """Copies of batches by threads, each of which copies its share of every batch without waiting for the others."""

    def __init__(self, store: Store, batch_size: int, steps: int) -> None:
        shape = store.manifest.shape
        self.source = page_aligned_slot((steps * batch_size, *shape)).pixels
        store.take(np.arange(len(self.source)), out=self.source)
        # The Loader has as many slots, so the destinations are equally cold in the processor's caches.
        self.slots = [page_aligned_slot((batch_size, *shape)).pixels for _ in range(5)]
        self.batch_size, self.steps = batch_size, steps

    def epoch(self, count: int = 2) -> None:
        """Copy all batches with `count` threads."""
        threads = [threading.Thread(target=self._copy, args=(number, count)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _copy(self, number: int, count: int) -> None:
        part = slice(number * self.batch_size // count, (number + 1) * self.batch_size // count)
        for step in range(self.steps):
            batch = self.source[step * self.batch_size : (step + 1) * self.batch_size]
            np.copyto(self.slots[step % len(self.slots)][part], batch[part])


def drain(batches: Any) -> None:
    """Iterate over all batches."""
    for _ in batches:
        pass
