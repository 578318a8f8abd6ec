"""Work on a batch in the memory of a CPU row by row, in threads: each row passes all steps while it is in the cache."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from decodeonce.loader.buffers import recycled

# An image takes about 0.2 ms, and holds Python's global lock for 0.03 ms. More threads would wait for the lock.
_MOST_THREADS = 8

# What a step does to a row: from the image, the number of the row in the batch, and the place of the result if the step
# is the last, to the new image. It need not use the place.
RowWork = Callable[[Tensor, int, Tensor | None], Tensor]


@dataclass(frozen=True)
class Rows:
    """Images of a batch in the memory of a CPU, and what is still to be done to each of them.

    Args:
        images: (B, H, W, C).
        shape: Shape of an image after the work.
        dtype: dtype of an image after the work.
        work: The steps, in order.
    """

    images: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    work: tuple[RowWork, ...] = ()

    @classmethod
    def of(cls, images: Tensor) -> Rows:
        """The images of a batch, to which nothing is to be done yet."""
        return cls(images, tuple(images.shape[1:]), images.dtype)

    def then(self, work: RowWork, shape: tuple[int, ...], dtype: torch.dtype) -> Rows:
        """Add a step that gives images of this shape (H, W, C) and dtype."""
        return Rows(self.images, shape, dtype, (*self.work, work))

    def done(self) -> Tensor:
        """Do the work in torch.get_num_threads() threads, at most 8, and return the images."""
        if not self.work:
            return self.images
        images, (*first, last) = self.images, self.work
        result = recycled((len(images), *self.shape), self.dtype)

        def fill(row: int) -> None:
            image, place = images[row], result[row]
            for work in first:
                image = work(image, row, None)
            image = last(image, row, place)
            if image is not place:
                place.copy_(image)

        return fill_rows(result, fill)


def fill_rows(result: Tensor, fill: Callable[[int], object]) -> Tensor:
    """Call `fill` with the number of each row of `result`, in threads as in `share_rows`."""
    share_rows(len(result), lambda rows: deque(map(fill, rows), maxlen=0))
    return result


def share_rows(count: int, work: Callable[[Iterator[int]], object]) -> None:
    """Share `count` rows among torch.get_num_threads() threads, at most 8, and call `work` in each with its rows.

    A thread takes its next row when it is done with the last one, because other threads may use the same cores.
    """
    threads = max(1, min(torch.get_num_threads(), count, _MOST_THREADS))
    left = iter(range(count))
    with ThreadPoolExecutor(threads, initializer=_use_one_core) as pool:
        deque(pool.map(work, [left] * threads), maxlen=0)


def _use_one_core() -> None:
    """Let torch use one core for what this thread calls.

    Otherwise, torch's threads spin while they wait for each other. When other processes used the same cores, this took
    up to 20 times as long as the work itself. torch.set_num_threads() would also change the threads that others start
    later.
    """
    torch.get_num_threads()  # in each thread, the first use of torch sets the number
    with suppress(AttributeError):  # a torch without OpenMP
        ctypes.CDLL(None).omp_set_num_threads(1)
