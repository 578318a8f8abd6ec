"""How much memory a picture may take while it is decoded, so that none can take the machine's."""

from __future__ import annotations

import os
import resource
import weakref
from collections.abc import Callable
from typing import TypeVar

import numpy as np

# A lossless WebP of 178 Mpixel, the most of what is decoded at all, took 2.9 GB.
PICTURE_BYTES = 4 << 30
_DATA_FIELD = 5  # of /proc/PID/statm: pages that are private and can be written

T = TypeVar("T")


class TooMuchMemory(Exception):
    """More than PICTURE_BYTES was asked for."""


class MemoryBound:
    """Calls functions that may take PICTURE_BYTES more memory than the process has, mapped files not counted."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)  # stays open: opening costs more than reading, 4 us
        weakref.finalize(self, os.close, self._statm)
        self._page = resource.getpagesize()

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns; raises TooMuchMemory where the bound was met.

        Raises MemoryError where a limit of the user's, or the machine, may have been in its way before.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = self._taken() + PICTURE_BYTES
        if any(0 <= other < limit for other in (soft, hard)):  # -1 is none
            return function()
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        try:
            return function()
        except MemoryError:
            pass  # with the exception goes what the function held
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        if not could_take(PICTURE_BYTES):
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
