"""Listing a tar: where each of its files lies, from the headers alone."""

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


MAX_HEADER_BYTES = 1 << 20  # of all headers of one member, which tarfile reads whole: long names, pax, sparse maps
# Python's before 3.11.10 and 3.12.6 look for numbers in pax headers in time that grows with the square of their length.
_LONG_NUMBER = re.compile(rb"[0-9]{256}")


class Window:
    """A part of a file, read as tarfile reads a file of its own: `path` names it, `length` is in bytes.

    tarfile asks for the byte before a header, then for the header: one pread gives both.
    """

    ahead = 1 + BLOCK  # how many bytes are read at least

    def __init__(self, fd: int, path: str, first: int, length: int) -> None:
        self.path = path
        self.length = length
        self._fd = fd
        self._first = first
        self._at = 0
        self._held = (0, b"")

    def tell(self) -> int:
        """The next byte to be read."""
        return self._at

    def seek(self, at: int) -> None:
        """Have `at` be the next byte to be read."""
        self._at = at

    def close(self) -> None:
        """Nothing: the descriptor is its owner's."""

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end of the part."""
        start, held = self._held
        if not start <= self._at <= self._at + size <= start + len(held):
            start, held = self._held = (self._at, self._fetch(max(size, self.ahead)))
        data = held[self._at - start :][:size]
        self._at += len(data)
        return data

    def read_at(self, at: int, size: int) -> bytes:
        """The `size` bytes from `at`, fewer only at the end of the part."""
        self.seek(at)
        return self.read(size)

    def read_to_end(self) -> None:
        """Read what shows whether all of it is whole: of a plain file, nothing."""

    def _fetch(self, size: int) -> bytes:
        try:
            return disk.pread(self._fd, max(0, min(size, self.length - self._at)), self._first + self._at)
        except OSError as error:
            raise failure_from(error, self.path) from None


class _HeaderReader:
    """A window as tarfile sees it, which reads nothing but headers: of each member no more than MAX_HEADER_BYTES."""

    def __init__(self, window: Window) -> None:
        self.tell, self.seek, self._read = window.tell, window.seek, window.read
        self.left = MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """The next `size` bytes; raises tarfile.ReadError for what no header is like."""
        self.left -= size
        if not 0 <= size <= size + self.left:
            raise tarfile.ReadError(f"headers of more than {MAX_HEADER_BYTES} bytes before byte {self.tell()}")
        data = self._read(size)
        if size > BLOCK and _LONG_NUMBER.search(data):
            raise tarfile.ReadError(f"a number of more than 256 digits in a header before byte {self.tell()}")
        return data


def list_tar(window: Window) -> Iterator[Member]:
    """The files of a tar in their order, hidden ones and folders left out; `place` counts from the window's start.

    Raises BuildError where the tar is compressed, damaged, or ends before its end, as half a download does.
    """
    refuse_compressed(window)
    headers, tally = _HeaderReader(window), MemberLimits(window.path)
    try:
        tar = tarfile.TarFile(fileobj=cast(IO[bytes], headers), encoding="utf-8", errors="surrogateescape")
        while (info := tar.next()) is not None:
            headers.left = MAX_HEADER_BYTES
            tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them
            if tar.offset <= info.offset or info.size < 0 or info.offset_data < 0:
                raise tarfile.ReadError(f"bad header at byte {info.offset}")
            if tar.pax_headers and sum(map(len, tar.pax_headers.values())) > MAX_HEADER_BYTES:
                raise tarfile.ReadError(f"global headers of more than {MAX_HEADER_BYTES} bytes")
            if tar.offset > window.length:
                raise BuildError(_truncated_message(window, tar.offset, info.name))
            tally.add(name := name_bytes(info.name))
            if (name := clean_name(name)) and not info.isdir():
                yield Member(name, info.offset_data, info.size, _problem(info))
    except RecursionError:
        raise BuildError(f"{window.path}: no tar, or a damaged one: headers of headers; get it again") from None
    except (tarfile.TarError, ValueError, IndexError, OverflowError) as error:  # IndexError: of half a sparse map
        if window.tell() >= window.length:
            raise BuildError(_truncated_message(window, window.length + BLOCK, "a header")) from None
        raise BuildError(f"{window.path}: no tar, or a damaged one: {error}; get it again") from None
    _check_end(window, tar.offset)


def refuse_compressed(window: Window) -> None:
    """BuildError where the file is a compressed one."""
    begin = window.read(6)
    window.seek(0)
    for magic, name in COMPRESSED.items():
        if begin.startswith(magic):
            unpacker = "gunzip" if name == "gzip" else f"un-{name}"
            raise BuildError(f"{window.path}: a {name} stream, which cannot be read at an offset; {unpacker} it first")


def _check_end(window: Window, at: int) -> None:
    """tarfile takes any bytes that are no header for the end: a tar has two empty blocks there, we ask for one."""
    ran_out = window.tell() >= window.length
    window.seek(at)
    block = window.read(BLOCK)
    if len(block) < BLOCK or (ran_out and any(block)):  # in the middle of a pax header, too
        raise BuildError(_truncated_message(window, at + BLOCK, "the empty block that ends a tar"))
    if any(block):
        raise BuildError(f"{window.path}: damaged: no tar header at byte {at}; get it again")


def _truncated_message(window: Window, expected: int, what: str) -> str:
    return (
        f"{window.path}: ends at byte {window.length}, expected at least {expected} ({what}): cut short? get it again"
    )


def _problem(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "a link in the tar"
    if info.issparse():
        return "a sparse file in the tar"
    if not info.isreg():
        return "not a regular file"
    return size_problem(info.size)
