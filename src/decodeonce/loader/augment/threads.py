"""Augment on a CPU, image by image in several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

# An image takes about 0.3 ms, and holds Python's global lock for 0.03 ms. More threads would wait for the lock.
_MOST = 8


def for_each_row(work: Callable[[int], None], count: int) -> None:
    """Call `work` with each number below `count`, in torch.get_num_threads() threads, at most 8.

    `work` must use NumPy for operations that torch would run in several threads. torch's threads spin while they wait
    for each other. When other processes used the same cores, this took up to 20 times as long as the work itself.
    """
    threads = max(1, min(torch.get_num_threads(), count, _MOST))

    def share(first: int) -> None:
        for row in range(first, count, threads):
            work(row)

    with ThreadPoolExecutor(threads) as pool:
        deque(pool.map(share, range(threads)), maxlen=0)
