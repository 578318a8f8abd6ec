"""A page of memory that a worker shares with its parent and that outlives it: the row it is working on."""

from __future__ import annotations

import mmap
import os
import struct

_ROW = struct.Struct("<q")


class Heartbeat:
    """The page of the descriptor `fd`: which row is being read or decoded, if any."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _ROW.size)

    @staticmethod
    def new_fd() -> int:
        """Return the descriptor of a new page, for a process to inherit."""
        fd = os.memfd_create("heartbeat")
        os.truncate(fd, _ROW.size)
        return fd

    def start_reading(self, row: int) -> None:
        """Record that this planned row is being read."""
        _ROW.pack_into(self._page, 0, -row - 1)

    def start_decoding(self, row: int) -> None:
        """Record that this planned row is being decoded."""
        _ROW.pack_into(self._page, 0, row + 1)

    def idle(self) -> None:
        """Record that no row is being read or decoded."""
        _ROW.pack_into(self._page, 0, 0)

    @property
    def decoding(self) -> int | None:
        """The planned row that is being decoded, if any."""
        (stored,) = _ROW.unpack_from(self._page, 0)
        return stored - 1 if stored > 0 else None

    @property
    def reading(self) -> int | None:
        """The planned row that is being read, if any."""
        (stored,) = _ROW.unpack_from(self._page, 0)
        return -stored - 1 if stored < 0 else None

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
