"""Slots: batch-sized buffers in host memory that are allocated once and reused."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.memory import page_aligned

Pixels = NDArray[np.uint8]


class Slot:
    """One batch-sized buffer, uint8 (B, H, W, C): `memory`, and the same as an array, `pixels`.

    `copied` is the event of the last copy to a device, after which the slot may be overwritten.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.pixels: Pixels = memory.numpy()
        self.copied: Any = None


def page_aligned_slot(shape: tuple[int, ...]) -> Slot:
    """A slot in ordinary memory that begins on a page.

    Rows of a store begin on pages too, as long as a row is whole pages. Where the destination of a copy lies 1 to 31
    bytes past its source modulo 4096, as with NumPy's own large arrays (page + 16), `rep movsb`, which glibc and the
    kernel copy with, ran 4 to 5 times slower on AMD Milan: 1.8 to 2.2 GB/s instead of 8 to 10. Pinned memory, from
    torch, begins on a page or at a multiple of 64 and is out of that range.
    """
    return Slot(torch.frombuffer(page_aligned(math.prod(shape)), dtype=torch.uint8).view(shape))


class Slots:
    """Free slots, oldest first. Any thread may give one back; only the filler takes.

    The first `size` slots are all made before any is reused. If none has come back because the user holds them all,
    another is made. At most `size` free slots are kept.
    """

    def __init__(self, make: Callable[[], Slot], size: int) -> None:
        self._make = make
        self._size = size
        self._free: deque[Slot] = deque()
        self.made = 0

    def take(self) -> Slot:
        """The slot that has been free for longest, or a new one."""
        if self.made >= self._size:
            with suppress(IndexError):
                return self._free.popleft()
        self.made += 1
        return self._make()

    def give_back(self, slot: Slot) -> None:
        """Let the slot be reused."""
        # No lock: finalizers end here, run by whichever thread drops the last reference or collects garbage, and that
        # thread may hold any lock there is. deque.append is atomic; a race leaves one slot too many, no harm.
        if len(self._free) < self._size:
            self._free.append(slot)

    def close(self) -> None:
        """Drop all free slots, and every other one when it comes back."""
        self._size = 0
        self._free.clear()

    def lend(self, slot: Slot, rows: int) -> Pixels:
        """The slot's first `rows` rows as an array that gives the slot back when nothing refers to it any more.

        A tensor made of the array refers to it, and so does every view of that tensor; a weak reference to the tensor
        would miss the views. The array itself must not be sliced: NumPy's views refer past it to the memory's owner.
        """
        pixels = slot.pixels
        lent: Pixels = np.ndarray((rows, *pixels.shape[1:]), np.uint8, buffer=pixels.data)
        # At exit there is nothing to give a slot back to.
        weakref.finalize(lent, self.give_back, slot).atexit = False
        return lent
