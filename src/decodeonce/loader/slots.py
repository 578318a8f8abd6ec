"""Slots: batch-sized buffers in host memory, allocated once and reused."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.memory import page_aligned
from decodeonce.loader.pool import Pool

Pixels = NDArray[np.uint8]


def refuse_to_copy(self: object) -> NoReturn:
    """The `__reduce__` of what works only in its own process: pickle, copy and deepcopy raise TypeError.

    torch would move the memory of a slot to another address when it sends the slot to a process.
    """
    raise TypeError(
        f"a {type(self).__name__} of decodeonce cannot be pickled or copied: create the Loader in the process that "
        "uses it, and give a DataLoader with workers a StoreDataset"
    )


class Slot:
    """A batch-sized buffer, uint8 (B, H, W, C), as a tensor (`memory`) and as an array (`pixels`).

    `copied` is the event of the last copy to a device. After it, the slot can be overwritten.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.pixels: Pixels = memory.numpy()
        self.copied: Any = None

    __reduce__ = refuse_to_copy


def page_aligned_slot(shape: tuple[int, ...]) -> Slot:
    """Allocate a slot in ordinary memory that starts at a page boundary.

    The rows of a store also start at page boundaries if the size of a row is a multiple of the page size. glibc and the
    kernel copy with `rep movsb`. On AMD Milan it ran 4 to 5 times slower (1.8 to 2.2 GB/s instead of 8 to 10) if the
    destination was 1 to 31 bytes past the source modulo 4096. NumPy's large arrays, which start at page + 16, have
    that problem. Pinned memory from torch starts at a page boundary or a multiple of 64, so it does not.
    """
    return Slot(torch.frombuffer(page_aligned(math.prod(shape)), dtype=torch.uint8).view(shape))


class Slots:
    """A pool of free slots, oldest first. Any thread can give a slot back; only the filler takes slots.

    No slot is reused before `size` slots exist. If the user holds all of them, a new slot is created. At most `size`
    free slots are kept.
    """

    def __init__(self, make: Callable[[], Slot], size: int) -> None:
        self._make = make
        self._size = size
        self._free: Pool[Slot] = Pool(size)
        self.made = 0

    __reduce__ = refuse_to_copy

    def take(self) -> Slot:
        """The slot that has been free for the longest time, or a new one."""
        if self.made >= self._size:
            with suppress(IndexError):
                return self._free.pop()
        self.made += 1
        return self._make()

    def give_back(self, slot: Slot) -> None:
        """Mark the slot as free."""
        self._free.append(slot)

    def close(self) -> None:
        """Drop all free slots now, and every other slot when it is given back."""
        self._free.clear()
        self._free = Pool(0)

    def lend(self, slot: Slot, rows: int) -> Pixels:
        """The first `rows` rows of the slot, as an array that gives the slot back when its last reference is gone.

        A tensor made from the array keeps the array alive, and so does every view of that tensor. A weak reference to
        the tensor would miss the views. Do not slice the array itself: NumPy's views refer to the owner of the memory
        and do not keep the array alive.
        """
        pixels = slot.pixels
        lent: Pixels = np.ndarray((rows, *pixels.shape[1:]), np.uint8, buffer=pixels.data)
        self._free.lend(slot, lent)
        return lent
