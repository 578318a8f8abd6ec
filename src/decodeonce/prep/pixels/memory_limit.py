"""How much memory a picture or a table may take while it is unpacked, so that none can take the machine's."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

import numpy as np

# A lossless WebP of 178 Mpixel, the most of what is decoded at all, took 2.9 GB.
PICTURE_BYTES = 4 << 30
_DATA_FIELD = 5  # of /proc/PID/statm: pages that are private and can be written

T = TypeVar("T")


class TooMuchMemory(Exception):
    """More than was allowed was asked for."""


class _Limit:
    """RLIMIT_DATA, which is the whole process's: whoever is inside adds what he may take to what there is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: list[int] = []
        self._before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def enter(self, nbytes: int, taken: int) -> bool:
        """Allow `nbytes` beyond those `taken`; False where a limit of the user's is lower, which then stays."""
        with self._lock:
            if not self._inside:
                self._before = resource.getrlimit(resource.RLIMIT_DATA)
            limit = taken + nbytes + sum(self._inside)
            if any(0 <= other < limit for other in self._before):  # -1 is none
                return False
            resource.setrlimit(resource.RLIMIT_DATA, (limit, self._before[1]))
            self._inside.append(nbytes)
            return True

    def leave(self, nbytes: int) -> None:
        """No longer allow these; the last one to leave puts back what was there before."""
        with self._lock:
            self._inside.remove(nbytes)
            if not self._inside:
                resource.setrlimit(resource.RLIMIT_DATA, self._before)


_limit = _Limit()


class MemoryBound:
    """Calls functions that may take `nbytes` (PICTURE_BYTES) more than the process has, mapped files not counted."""

    def __init__(self, nbytes: int | None = None) -> None:
        self._nbytes = PICTURE_BYTES if nbytes is None else nbytes
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)  # stays open: opening costs more than reading, 4 us
        weakref.finalize(self, os.close, self._statm)
        self._page = resource.getpagesize()

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns; raises TooMuchMemory where the bound was met. Several threads may be in calls.

        Raises MemoryError where a limit of the user's, or the machine, may have been in its way before.
        """
        if not _limit.enter(self._nbytes, self._taken()):
            return function()
        try:
            return function()
        except MemoryError:
            pass  # with the exception goes what the function held
        finally:
            _limit.leave(self._nbytes)
        if not could_take(self._nbytes):
            raise MemoryError
        raise TooMuchMemory

    def _taken(self) -> int:
        return int(os.pread(self._statm, 256, 0).split()[_DATA_FIELD]) * self._page


def could_take(nbytes: int) -> bool:
    """Whether this process would be given so much more memory."""
    try:
        np.empty(nbytes, np.uint8)  # asked for, and never touched
    except MemoryError:
        return False
    return True
