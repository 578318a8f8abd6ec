"""Limit the memory that one image or table may take, so that none can use up the machine's memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

# A lossless WebP of 178 Mpixel, the maximum size of an image, took 2.9 GB.
IMAGE_BYTES = 4 << 30
SPARE_BYTES = 1 << 30  # for everything else that the process holds, such as buffers
_DATA_FIELD = 5  # of /proc/PID/statm: private, writable pages

_limits: list[int | None] = []  # limits of the `limited_memory` blocks that are running, the innermost last
_before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@contextmanager
def limited_memory(nbytes: int | None = IMAGE_BYTES) -> Iterator[None]:
    """Limit this process to `nbytes` more memory than it has now, mapped files not counted.

    Allocations beyond the limit raise MemoryError. `can_allocate(nbytes)` then returns True if the limit was the
    reason, and False if the machine has too little memory. A nested block has its own limit, and the memory that it
    keeps does not count for the outer block. A lower limit set by the user stays.

    Args:
        nbytes: Additional memory in bytes. None: no limit.
    """
    global _before
    if not _limits:
        _before = resource.getrlimit(resource.RLIMIT_DATA)
    _limits.append(nbytes)
    _set_limit()
    try:
        yield
    finally:
        _limits.pop()
        _set_limit()


def _set_limit() -> None:
    soft, hard = _before
    if _limits and (nbytes := _limits[-1]) is not None:
        pages = int(Path("/proc/self/statm").read_bytes().split()[_DATA_FIELD])
        limit = pages * resource.getpagesize() + nbytes + SPARE_BYTES
        if not any(0 <= other < limit for other in _before):  # -1 is no limit
            soft = limit
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def can_allocate(nbytes: int) -> bool:
    """Return whether this process can allocate `nbytes` more memory."""
    try:
        np.empty(nbytes, np.uint8)  # allocated, but never touched
    except MemoryError:
        return False
    return True
