"""Gzip streams that are read forward: by tarfile to list a tar, by a worker to read its members."""

from __future__ import annotations

import gzip
import os
import sys
import zlib

from decodeonce.errors import SERVER_DOWN_ERRORS, DecodeonceError, failure_from
from decodeonce.prep.sources.formats.tar import Window

MAGIC = b"\x1f\x8b"
CHUNK = 1 << 20
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


class GzipStream(Window):
    """The unpacked bytes of an open gzip file.

    Seeking forward unpacks everything in between. Seeking backward starts again at the beginning.

    Args:
        fd: Descriptor of the gzip file; it stays open when the stream is closed.
        path: Name of the file in messages.
        failure: The exception to raise if the file is damaged or cannot be read.
    """

    ahead = 0  # read no more than requested, because seeking backward is expensive

    def __init__(self, fd: int, path: str, failure: type[DecodeonceError]) -> None:
        super().__init__(fd, path, 0, sys.maxsize)  # the length is known only after the end was read
        self._failure = failure
        self._file = os.fdopen(os.dup(fd), "rb")
        self._file.seek(0)
        self._stream = gzip.GzipFile(fileobj=self._file)

    def read_to_end(self) -> None:
        """Unpack the rest, to check that the stream is complete."""
        while self.read(CHUNK):
            pass

    def close(self) -> None:
        self._stream.close()
        self._file.close()

    def _fetch(self, size: int) -> bytes:
        try:
            found = self._stream.seek(self._at)
            data = self._stream.read(size) if found == self._at else b""
        except (OSError, *_DAMAGED) as error:
            if isinstance(error, OSError) and error.errno in SERVER_DOWN_ERRORS:
                raise failure_from(error, self.path) from None
            advice = "download it again; if its disk failed, run the same command again"
            raise self._failure(f"{self.path}: cannot be unpacked at byte {self._at}: {error}; {advice}") from None
        if len(data) < size:
            self.length = found + len(data)
        return data
