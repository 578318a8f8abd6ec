"""One shared page between a worker and its parent: the row that is being read, or whose picture is being decoded."""

from __future__ import annotations

import mmap
import os
import struct

_ROW = struct.Struct("<q")


class Beat:
    """The page behind the descriptor `fd`; it outlives its worker, so a dead one's picture is still known."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _ROW.size)

    @staticmethod
    def new_fd() -> int:
        """A descriptor for a new page, to be inherited by a worker."""
        fd = os.memfd_create("beat")
        os.truncate(fd, _ROW.size)
        return fd

    def reading(self, row: int) -> None:
        """This planned row is being read."""
        _ROW.pack_into(self._page, 0, -row - 1)

    def decoding(self, row: int) -> None:
        """This planned row has been read, and is being decoded."""
        _ROW.pack_into(self._page, 0, row + 1)

    def idle(self) -> None:
        """Neither."""
        _ROW.pack_into(self._page, 0, 0)

    @property
    def row(self) -> int | None:
        """The planned row being decoded, None between pictures."""
        (stored,) = _ROW.unpack_from(self._page, 0)
        return stored - 1 if stored > 0 else None

    @property
    def read_row(self) -> int | None:
        """The planned row being read, None before and after."""
        (stored,) = _ROW.unpack_from(self._page, 0)
        return -stored - 1 if stored < 0 else None

    def close(self) -> None:
        """Give the page back."""
        self._page.close()
