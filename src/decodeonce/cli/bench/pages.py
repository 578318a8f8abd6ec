"""Drop files from the page cache, without root rights, and check that they are gone."""

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

from decodeonce.host import is_in_memory
from decodeonce.store.durable import sync_file

TRIES, PAUSE_SECONDS = 20, 0.02  # the kernel skips pages that are busy
CHECKED = 64  # positions that are checked
COLD = 0.05  # files count as cold if at most this share of the positions is in memory


class FilePosition(NamedTuple):
    """A byte of a file."""

    path: Path
    offset: int


def make_cold(positions: Sequence[FilePosition]) -> str:
    """Drop the files of these positions from the page cache; return "", or why their pages stay in memory.

    Dirty pages are written first. Pages that a process has mapped stay. There must be at least one position.
    """
    paths = {position.path for position in positions}
    some = positions[:: -(-len(positions) // CHECKED)]
    if is_in_memory(positions[0].path):
        return f"{positions[0].path.parent} is on a memory file system"
    for _ in range(TRIES):
        for path in paths:
            drop(path)
        share = held_share(some)
        if share is None or share <= COLD:
            return ""
        time.sleep(PAUSE_SECONDS)
    return f"{share:.0%} of the pages stayed in memory, probably because another process uses them"


def drop(path: Path) -> None:
    """Drop the pages of a file."""
    with suppress(OSError):  # read-only file systems such as squashfs have no fsync
        sync_file(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def held_share(positions: Sequence[FilePosition]) -> float | None:
    """Return the share of these bytes that is in memory; None for files that this user neither owns nor can write.

    For such files, mincore(2) always reports that they are in memory. A read with RWF_NOWAIT is no alternative: it
    would start to read the missing pages.
    """
    if not all(map(_may_ask, {path for path, _ in positions})):
        return None
    return sum(_is_held(position) for position in positions) / len(positions)


def _may_ask(path: Path) -> bool:
    return os.access(path, os.W_OK) or path.stat().st_uid == os.geteuid()


def _is_held(position: FilePosition) -> bool:
    start = position.offset // mmap.PAGESIZE * mmap.PAGESIZE
    fd = os.open(position.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapping = mmap.mmap(fd, position.offset - start + 1, prot=mmap.PROT_READ, offset=start)
    finally:
        os.close(fd)
    page = np.frombuffer(mapping, np.uint8)
    found = ctypes.c_ubyte()
    if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(page.ctypes.data), 1, ctypes.byref(found)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(position.path))
    return bool(found.value & 1)
