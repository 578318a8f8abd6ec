"""How fast memory is copied here: what no loader can beat."""

from __future__ import annotations

import math
import threading
import time

import numpy as np

from decodeonce.loader.ring import page_aligned_slot

THREADS = 2
SLOTS = 5  # as many as the Loader's ring has, so that the destinations are as cold


class Copies:
    """Two threads of np.copyto, each its half of every batch, between buffers that begin on pages."""

    def __init__(self, shape: tuple[int, ...], batches: int) -> None:
        self._source = [page_aligned_slot(shape).pixels for _ in range(batches)]
        for batch in self._source:
            batch.fill(1)
        self._slots = [page_aligned_slot(shape).pixels for _ in range(SLOTS)]
        self._batch_bytes = math.prod(shape)

    def bytes_per_s(self, seconds: float) -> float:
        """Of copying for about so long, and at least all batches once, after the first touch of the buffers."""
        self._once()
        copied, start = 0, time.perf_counter()
        while not copied or time.perf_counter() - start < seconds:
            self._once()
            copied += len(self._source) * self._batch_bytes
        return copied / (time.perf_counter() - start)

    def _once(self) -> None:
        threads = [threading.Thread(target=self._copy, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _copy(self, number: int) -> None:
        for step, batch in enumerate(self._source):
            part = slice(number * len(batch) // THREADS, (number + 1) * len(batch) // THREADS)
            np.copyto(self._slots[step % SLOTS][part], batch[part])
