"""Gzip streams, read forward: by tarfile when a tar is listed, by a worker when its members are read."""

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
    """What an open gzip file unpacks to; `read` raises `failure` where it is damaged or its reading fails.

    Going forward unpacks what lies between, going back starts again from the beginning.
    """

    ahead = 0  # no more than is asked for, since going back is expensive

    def __init__(self, fd: int, path: str, failure: type[DecodeonceError]) -> None:
        super().__init__(fd, path, 0, sys.maxsize)  # until the end was seen
        self._failure = failure
        self._file = os.fdopen(os.dup(fd), "rb")
        self._file.seek(0)
        self._stream = gzip.GzipFile(fileobj=self._file)

    def read_to_end(self) -> None:
        """Unpack the rest, which shows whether the stream is whole."""
        while self.read(CHUNK):
            pass

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._file.close()

    def _fetch(self, size: int) -> bytes:
        try:
            found = self._stream.seek(self._at)
            data = self._stream.read(size) if found == self._at else b""
        except (OSError, *_DAMAGED) as error:
            if isinstance(error, OSError) and error.errno in SERVER_DOWN_ERRORS:
                raise failure_from(error, self.path) from None
            advice = "get it again, or run the same command again if its disk failed"
            raise self._failure(f"{self.path}: cannot be unpacked at byte {self._at}: {error}; {advice}") from None
        if len(data) < size:
            self.length = found + len(data)
        return data
