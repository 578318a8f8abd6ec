"""List the members of a tar and their offsets from its headers alone."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import IO, cast

from decodeonce.errors import BuildError, failure_from
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.sources.base import size_problem
from decodeonce.prep.sources.formats.member import Member, MemberLimits, clean_name
from decodeonce.store import disk

BLOCK = tarfile.BLOCKSIZE
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


MAX_HEADER_BYTES = (
    1 << 20
)  # limit for all headers of one member (long names, pax, sparse maps), which tarfile reads whole
# Python before 3.11.10 and 3.12.6 searches pax headers for numbers in time that grows with the square of their length.
_LONG_NUMBER = re.compile(rb"[0-9]{256}")


class Window:
    """A part of a file that tarfile can read like a file.

    tarfile reads the byte before a header, then the header. One pread covers both.

    Args:
        fd: Descriptor of the file. It stays open.
        path: Name of the part in messages.
        first: Offset of the part in the file.
        length: Size of the part in bytes.
    """

    ahead = 1 + BLOCK  # the least number of bytes per pread

    def __init__(self, fd: int, path: str, first: int, length: int) -> None:
        self.path = path
        self.length = length
        self._fd = fd
        self._first = first
        self._at = 0
        self._held = (0, b"")

    def tell(self) -> int:
        return self._at

    def seek(self, at: int) -> None:
        self._at = at

    def close(self) -> None:
        """Do nothing: the descriptor belongs to the caller."""

    def read(self, size: int) -> bytes:
        """Read the next `size` bytes, fewer only at the end of the part."""
        start, held = self._held
        if not start <= self._at <= self._at + size <= start + len(held):
            start, held = self._held = (self._at, self._fetch(max(size, self.ahead)))
        data = held[self._at - start :][:size]
        self._at += len(data)
        return data

    def read_at(self, at: int, size: int) -> bytes:
        """Read `size` bytes from `at`, fewer only at the end of the part."""
        self.seek(at)
        return self.read(size)

    def read_to_end(self) -> None:
        """Read the rest if that is needed to check integrity. A plain file needs no check."""

    def _fetch(self, size: int) -> bytes:
        try:
            return disk.pread(self._fd, max(0, min(size, self.length - self._at)), self._first + self._at)
        except OSError as error:
            raise failure_from(error, self.path) from None


class _HeaderReader:
    """The file that tarfile reads: a window that allows at most MAX_HEADER_BYTES of headers per member."""

    def __init__(self, window: Window) -> None:
        self.tell, self.seek, self._read = window.tell, window.seek, window.read
        self.left = MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """Read the next `size` bytes; raise tarfile.ReadError for an implausible header."""
        self.left -= size
        if not 0 <= size <= size + self.left:
            raise tarfile.ReadError(f"headers of more than {MAX_HEADER_BYTES} bytes before byte {self.tell()}")
        data = self._read(size)
        if size > BLOCK and _LONG_NUMBER.search(data):
            raise tarfile.ReadError(f"a number of more than 256 digits in a header before byte {self.tell()}")
        return data


def list_tar(window: Window) -> Iterator[Member]:
    """Yield the files of a tar in their order, except hidden ones. `place` counts from the start of the window.

    Raises:
        BuildError: If the tar is compressed, damaged or truncated, such as an incomplete download.
    """
    refuse_compressed(window)
    headers, limits = _HeaderReader(window), MemberLimits(window.path)
    try:
        tar = tarfile.TarFile(fileobj=cast(IO[bytes], headers), encoding="utf-8", errors="surrogateescape")
        while (info := tar.next()) is not None:
            headers.left = MAX_HEADER_BYTES
            tar.members = []  # type: ignore[attr-defined]  # otherwise tarfile keeps all of them
            if tar.offset <= info.offset or info.size < 0 or info.offset_data < 0:
                raise tarfile.ReadError(f"bad header at byte {info.offset}")
            if tar.pax_headers and sum(map(len, tar.pax_headers.values())) > MAX_HEADER_BYTES:
                raise tarfile.ReadError(f"global headers of more than {MAX_HEADER_BYTES} bytes")
            if tar.offset > window.length:
                raise BuildError(_truncated_message(window, tar.offset, info.name))
            limits.add(name := name_bytes(info.name))
            if (name := clean_name(name)) and not info.isdir():
                yield Member(name, info.offset_data, info.size, _problem(info))
    except RecursionError:
        raise BuildError(f"{window.path}: not a tar, or damaged: nested headers; download it again") from None
    except (tarfile.TarError, ValueError, IndexError, OverflowError) as error:  # IndexError: a truncated sparse map
        if window.tell() >= window.length:
            raise BuildError(_truncated_message(window, window.length + BLOCK, "a header")) from None
        raise BuildError(f"{window.path}: not a tar, or damaged: {error}; download it again") from None
    _check_end(window, tar.offset)


def refuse_compressed(window: Window) -> None:
    """Raise BuildError if the file is compressed."""
    begin = window.read(6)
    window.seek(0)
    for magic, name in COMPRESSED.items():
        if begin.startswith(magic):
            unpacker = "gunzip" if name == "gzip" else f"un-{name}"
            raise BuildError(
                f"{window.path}: compressed with {name}, so it cannot be read at an offset; {unpacker} it first"
            )


def _check_end(window: Window, at: int) -> None:
    """Check the end: tarfile treats any invalid header as the end. A tar ends with two empty blocks; require one."""
    ran_out = window.tell() >= window.length
    window.seek(at)
    block = window.read(BLOCK)
    if len(block) < BLOCK or (ran_out and any(block)):  # also if the tar ends in the middle of a pax header
        raise BuildError(_truncated_message(window, at + BLOCK, "the empty block that ends a tar"))
    if any(block):
        raise BuildError(f"{window.path}: damaged: no tar header at byte {at}; download it again")


def _truncated_message(window: Window, expected: int, what: str) -> str:
    return (
        f"{window.path}: truncated: ends at byte {window.length}, expected at least {expected} ({what}); "
        "download it again"
    )


def _problem(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "a link in the tar"
    if info.issparse():
        return "a sparse file in the tar"
    if not info.isreg():
        return "not a regular file"
    return size_problem(info.size)
