"""A limit on the memory that one image or one table may take, so that none can take all of the machine's."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

# A lossless WebP of 178 Mpixel, the largest image that is decoded at all, took 2.9 GB.
IMAGE_BYTES = 4 << 30
SPARE_BYTES = 1 << 30  # what the process may come to hold otherwise, such as buffers
_DATA_FIELD = 5  # of /proc/PID/statm: pages that are private and can be written

_limits: list[int | None] = []  # of the blocks below that are running, the innermost last
_before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@contextmanager
def limited_memory(nbytes: int | None = IMAGE_BYTES) -> Iterator[None]:
    """Limit this process to `nbytes` more memory than it has now, mapped files not counted; then put the limit back.

    A block within a block has a limit of its own, or none if `nbytes` is None; what it keeps does not count for the
    outer one. A lower limit of the user's stays. What asks for more gets a MemoryError: `can_allocate(nbytes)` then tells
    whether the limit was the reason, or the machine.
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
    """Whether this process would be given so much more memory."""
    try:
        np.empty(nbytes, np.uint8)  # asked for, and never touched
    except MemoryError:
        return False
    return True
