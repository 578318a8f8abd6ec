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
from decodeonce.loader.planes import Planes, to_rgb

# An image takes about 0.2 ms, and holds Python's global lock for 0.03 ms. More threads would wait for the lock.
_MOST_THREADS = 8

# What a step does to a row: from the image, the number of the row in the batch, and the place of the result if the step
# is the last, to the new image. It need not use the place.
RowWork = Callable[[Tensor, int, Tensor | None], Tensor]


@dataclass(frozen=True)
class PendingRows:
    """Images of a batch in the memory of a CPU, and what is still to be done to each of them.

    Args:
        images: (B, H, W, C), or (B, bytes) with `planes`.
        shape: Shape of an image after the work.
        dtype: dtype of an image after the work.
        work: The steps, in order.
        planes: How `images` hold their pixels; None: as they are.
    """

    images: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    work: tuple[RowWork, ...] = ()
    planes: Planes | None = None

    @classmethod
    def of(cls, images: Tensor, planes: Planes | None = None) -> PendingRows:
        """The images of a batch, to which nothing is to be done yet."""
        return cls(images, planes.shape if planes else tuple(images.shape[1:]), images.dtype, (), planes)

    def then(self, work: RowWork, shape: tuple[int, ...], dtype: torch.dtype) -> PendingRows:
        """Add a step that gives images of this shape (H, W, C) and dtype."""
        return PendingRows(self.images, shape, dtype, (*self._unpacked().work, work), self.planes)

    def crop(
        self, windows: list[list[int]], shape: tuple[int, ...], resize: Callable[[Tensor], Tensor] | None = None
    ) -> PendingRows:
        """Add a crop of the windows (top, left, height, width), each of which `resize` brings to `shape`.

        Of planes, only the window is unpacked, after it was resized.
        """
        planes = None if self.work else self.planes

        def crop(image: Tensor, row: int, place: Tensor | None) -> Tensor:
            top, left, height, width = windows[row]
            if planes:
                image = planes.window(image, top, left, height, width)
            else:
                image = image[top : top + height, left : left + width]
            image = resize(image) if resize else image
            return to_rgb(image) if planes else image

        return PendingRows(self.images, shape, self.dtype, (*self.work, crop), self.planes)

    def _unpacked(self) -> PendingRows:
        """The same, with planes unpacked by the first step."""
        if not self.planes or self.work:
            return self
        whole = [[0, 0, *self.shape[:2]]] * len(self.images)
        return self.crop(whole, self.shape)

    def done(self) -> Tensor:
        """Do the work in torch.get_num_threads() threads, at most 8, and return the images."""
        if self.planes and not self.work:
            on_cpu = self.images.device.type == "cpu"
            return self._unpacked().done() if on_cpu else self.planes.unpack(self.images)
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
