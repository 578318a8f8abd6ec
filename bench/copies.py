"""Copies in memory, which no loader can beat, and the iteration over a loader to compare with them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from decodeonce import Store
from decodeonce.loader.buffers import page_aligned_slot


class Copies:
    """Copies of batches by threads, each of which copies its share of every batch without waiting for the others.

    Args:
        store: Whose rows are copied.
        batch_size: Rows per batch.
        steps: Batches per epoch.
        shuffled: Copy rows one by one in a random order, as a Loader with shuffle="full" does.
        mapped: Copy from the mapped first shard, which is in the page cache. Default: from ordinary memory.
    """

    def __init__(
        self, store: Store, batch_size: int, steps: int, *, shuffled: bool = False, mapped: bool = False
    ) -> None:
        shape = store.manifest.shape
        self.order = np.random.default_rng(0).permutation(steps * batch_size) if shuffled else None
        if mapped:
            self.source = np.load(store.paths.root / store.manifest.shards[0].file, mmap_mode="r")
        else:
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
            rows, slot = slice(step * self.batch_size, (step + 1) * self.batch_size), self.slots[step % len(self.slots)]
            if self.order is None:
                np.copyto(slot[part], self.source[rows][part])
                continue
            for place, row in zip(slot[part], self.order[rows][part], strict=True):
                np.copyto(place, self.source[row])


def drain(batches: Any) -> None:
    """Iterate over all batches."""
    for _ in batches:
        pass
