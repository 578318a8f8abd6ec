"""A pool of memory that returns to it when the array that uses it is gone."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from functools import partial
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

Item = TypeVar("Item")


class Returned(weakref.ref[NDArray[Any]]):
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
        self._lent: dict[int, tuple[Returned, weakref.ref[NDArray[Any]]]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._free)

    def append(self, item: Item) -> None:
        """Add a free item."""
        self._free.append(item)

    def pop(self) -> Item:
        """Remove and return the item that has been free for the longest time. IndexError if there is none."""
        found = self._free.popleft()
        return found.item if isinstance(found, Returned) else found

    def lend(self, item: Item, array: NDArray[Any]) -> None:
        """Add `item` when the last reference to `array` is gone, unless the pool was cleared."""
        # The callbacks are functions in C, so no Python code runs when the user drops a batch. Python handles signals
        # only in Python code. If it handled Ctrl-C in a callback, it would only print KeyboardInterrupt and continue.
        number = next(self._numbers)
        returned = Returned(array, self._free.append)
        returned.item = item
        self._lent[number] = returned, weakref.ref(array, partial(self._lent.pop, number))

    def clear(self) -> None:
        """Drop all free items, and do not add those that are lent."""
        self._lent.clear()
        self._free.clear()
