"""Drop files from the page cache, which needs no root, and check that they are gone."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from decodeonce.host import lies_in_memory
from decodeonce.store.durable import sync_file

TRIES, PAUSE_SECONDS = 20, 0.02  # the kernel skips pages that are busy
CHECKED = 64  # places
COLD = 0.05  # up to this share, the files count as cold


class FilePosition(NamedTuple):
    """A byte of a file."""

    path: Path
    offset: int


def make_cold(places: Sequence[FilePosition]) -> str:
    """Drop the pages of the files of these places, at least one; return "" or why they are still in memory.

    Dirty pages are written first; pages that a process has mapped stay.
    """
    paths = {place.path for place in places}
    some = places[:: -(-len(places) // CHECKED)]
    if lies_in_memory(places[0].path):
        return f"{places[0].path.parent} lies in memory"
    for _ in range(TRIES):
        for path in paths:
            drop(path)
        share = held_share(some)
        if share is None or share <= COLD:
            return ""
        time.sleep(PAUSE_SECONDS)
    return f"{share:.0%} of the pages stayed, as those do that another process uses"


def drop(path: Path) -> None:
    """Drop the pages of a file."""
    with suppress(OSError):  # a file system that is never written, as squashfs, has no fsync
        sync_file(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def held_share(places: Sequence[FilePosition]) -> float | None:
    """The share of these bytes that is in memory; None for files that this user neither owns nor may write.

    mincore(2) says that all of those are in memory. A read with RWF_NOWAIT would start to read what is not.
    """
    if not all(map(_may_ask, {path for path, _ in places})):
        return None
    return sum(_is_held(place) for place in places) / len(places)


def _may_ask(path: Path) -> bool:
    return os.access(path, os.W_OK) or path.stat().st_uid == os.geteuid()


def _is_held(place: FilePosition) -> bool:
    start = place.offset // mmap.PAGESIZE * mmap.PAGESIZE
    fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapping = mmap.mmap(fd, place.offset - start + 1, prot=mmap.PROT_READ, offset=start)
    finally:
        os.close(fd)
    page = np.frombuffer(mapping, np.uint8)
    found = ctypes.c_ubyte()
    if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(page.ctypes.data), 1, ctypes.byref(found)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(place.path))
    return bool(found.value & 1)
