"""Host memory for batches: allocated once, lent to arrays, and reused when an array is gone."""

from __future__ import annotations

import itertools
import math
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.store.pixels import Pixels

Item = TypeVar("Item")

# malloc itself reuses smaller blocks.
_LARGE = 2**20


class Returned(weakref.ref[NDArray[np.generic]]):
    """A weak reference to an array that uses `item`."""

    item: Any


class Pool(Generic[Item]):
    """Free items, oldest first. If there are more than `limit`, the oldest is dropped.

    Any thread can call any method. There is no lock, because arrays are dropped in any thread, and that thread may
    already hold the lock. Each method of a deque and of a dict is atomic.
    """

    def __init__(self, limit: int) -> None:
        self._free: deque[Item | Returned] = deque(maxlen=limit)
        # A weak reference must stay alive until its array is gone; otherwise Python does not call its callback.
        self._lent: dict[int, tuple[Returned, weakref.ref[NDArray[np.generic]]]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._free)

    def give_back(self, item: Item) -> None:
        """Add a free item."""
        self._free.append(item)

    def pop(self) -> Item:
        """Remove and return the item that has been free for the longest time. IndexError if there is none."""
        found = self._free.popleft()
        return found.item if isinstance(found, Returned) else found

    def lend(self, item: Item, array: NDArray[np.generic]) -> None:
        """Give `item` back when the last reference to `array` is gone, unless the pool was cleared."""
        # The callbacks are functions in C, so no Python code runs when the user drops a batch. Python handles signals
        # only in Python code. If it handled Ctrl-C in a callback, it would only print KeyboardInterrupt and continue.
        number = next(self._numbers)
        returned = Returned(array, self._free.append)
        returned.item = item
        self._lent[number] = returned, weakref.ref(array, partial(self._lent.pop, number))

    def clear(self) -> None:
        """Drop all free items, and those that are lent when their arrays are gone."""
        self._lent.clear()
        self._free.clear()


def refuse_to_copy(self: object) -> NoReturn:
    """The `__reduce__` of what works only in its own process: pickle, copy and deepcopy raise TypeError.

    torch would move the memory of a slot to another address when it sends the slot to a process.
    """
    raise TypeError(
        f"decodeonce.{type(self).__name__} cannot be pickled or copied: create the Loader in the process that "
        "uses it, and give a DataLoader with workers a StoreDataset"
    )


class Event(Protocol):
    """A point in the work of a device."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""

    def query(self) -> bool:
        """Whether the device has reached it."""


class Slot:
    """A batch-sized buffer of rows, uint8 (B, H, W, C), as a tensor (`memory`) and as an array (`pixels`).

    With paired masks or images, or pixels that a device unpacks, it is uint8 (B, bytes of a row).

    `copied` is the event of the last copy to a device. After it, the slot can be overwritten.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.pixels: Pixels = memory.numpy()
        self.copied: Event | None = None

    __reduce__ = refuse_to_copy


class Slots(Pool[Slot]):
    """The slots of a Loader. Any thread can give one back; only the filler takes slots.

    No slot is reused before `size` slots exist. If the user holds all of them, a new slot is created. At most `size`
    free slots are kept.
    """

    def __init__(self, make: Callable[[], Slot], size: int) -> None:
        super().__init__(size)
        self._make, self._size = make, size
        self.made = 0

    __reduce__ = refuse_to_copy

    def take(self) -> Slot:
        """The slot that has been free for the longest time, or a new one."""
        if self.made >= self._size:
            with suppress(IndexError):
                return self.pop()
        self.made += 1
        return self._make()

    def lend_rows(self, slot: Slot, rows: int) -> Pixels:
        """The first `rows` rows of the slot, as an array that gives the slot back when its last reference is gone.

        A tensor made from the array keeps the array alive, and so does every view of that tensor. A weak reference to
        the tensor would miss the views. Do not slice the array itself: NumPy's views refer to the owner of the memory
        and do not keep the array alive.
        """
        pixels = slot.pixels
        lent: Pixels = np.ndarray((rows, *pixels.shape[1:]), np.uint8, buffer=pixels.data)
        self.lend(slot, lent)
        return lent


def page_aligned_slot(shape: tuple[int, ...]) -> Slot:
    """Allocate a slot in ordinary memory that starts at a page boundary.

    The rows of a store also start at page boundaries if the size of a row is a multiple of the page size. glibc and the
    kernel copy with `rep movsb`. On AMD Milan it ran 4 to 5 times slower (1.8 to 2.2 GB/s instead of 8 to 10) if the
    destination was 1 to 31 bytes past the source modulo 4096. NumPy's large arrays, which start at page + 16, have
    that problem. Pinned memory from torch starts at a page boundary or a multiple of 64, so it does not.
    """
    return Slot(torch.frombuffer(page_aligned(math.prod(shape)), dtype=torch.uint8).view(shape))


def page_aligned(nbytes: int) -> mmap.mmap:
    """Allocate zeroed memory that starts at a page boundary, in huge pages if available."""
    buffer = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        # With huge pages, the first write to 50 MB took 3 ms instead of 18. The first batch waits for that; later
        # copies are not faster.
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


# The pool of the blocks that `recycled` uses in a thread. Only the thread of a Loader that transforms has one.
_thread = threading.local()


def recycle_from(blocks: Pool[mmap.mmap]) -> None:
    """Let `recycled` take memory from `blocks` in this thread."""
    _thread.blocks = blocks


def recycled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Like torch.empty, but in a thread of a Loader, reuse the memory when the tensor and all of its views are gone.

    The first write to new memory took 0.24 ms for a float32 image of 224x224, more than all arithmetic on it.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE:
        return torch.empty(shape, dtype=dtype)
    blocks: Pool[mmap.mmap] | None = getattr(_thread, "blocks", None)
    block = _take_block(blocks, nbytes) if blocks is not None else page_aligned(nbytes)
    # The tensor and its views keep this array alive. When the array is collected, it gives the memory back.
    lent = np.ndarray(nbytes, np.uint8, buffer=block)
    if blocks is not None:
        blocks.lend(block, lent)
    return torch.from_numpy(lent).view(dtype).view(shape)


def _take_block(blocks: Pool[mmap.mmap], nbytes: int) -> mmap.mmap:
    """A free block of this size, or a new one. A single thread takes blocks, so their number cannot fall meanwhile."""
    for _ in range(len(blocks)):
        block = blocks.pop()
        if len(block) == nbytes:
            return block
        blocks.give_back(block)
    return page_aligned(nbytes)
