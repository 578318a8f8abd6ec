"""Augmenting on a CPU, one image at a time in several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

# An image takes about 0.3 ms, of which 0.03 hold Python's lock: with more threads, they would wait for it.
_MOST = 8


def for_each_row(work: Callable[[int], None], count: int) -> None:
    """Call `work` with each number below `count`, in as many threads as torch uses.

    `work` has to leave to NumPy what torch would do in several threads: they wait for each other by spinning, which
    took up to 20 times as long as the work itself when other processes wanted the same cores.
    """
    threads = max(1, min(torch.get_num_threads(), count, _MOST))

    def share(first: int) -> None:
        for row in range(first, count, threads):
            work(row)

    with ThreadPoolExecutor(threads) as pool:
        deque(pool.map(share, range(threads)), maxlen=0)
