"""Zips: their listing from the central directory alone, and the bytes of one member at a known place."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from decodeonce.errors import BuildError, failure_from
from decodeonce.prep.entry import Undecodable, name_bytes
from decodeonce.prep.sources.base import size_problem
from decodeonce.prep.sources.files import SourceFiles
from decodeonce.prep.sources.formats.member import MAX_MEMBERS, Member, MemberLimits, clean_name
from decodeonce.prep.sources.safe_open import open_regular

# APPNOTE.TXT 4.3.7: signature, version, flags, method, time, date, CRC-32, two sizes, lengths of name and extra field
LOCAL_HEADER = struct.Struct("<4s5HL2L2H")
LOCAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
ENCRYPTED, DESCRIBED_LATER = 0x1, 0x8
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_PLACE = ("header_offset", "compress_size")
SPARE = 512  # bytes by which a deflated JPEG may be larger than the JPEG itself
CHUNK = 1 << 20
MAX_DIRECTORY_BYTES = 1 << 30  # of a central directory, which zipfile reads whole; that of Kaggle's zip has 0.3 GB
CENTRAL = b"PK\x01\x02"  # begins what it says of each member


class _DirectoryReader(io.BufferedReader):
    """A file as zipfile sees it, which reads nothing but the central directory, and makes 700 bytes of each member."""

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes; raises zipfile.BadZipFile where there would be too much to hold."""
        if size is not None and size > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a central directory of {size} bytes, expected at most {MAX_DIRECTORY_BYTES}")
        data = super().read(size)
        if data.count(CENTRAL) > MAX_MEMBERS:
            raise zipfile.BadZipFile(f"more than {MAX_MEMBERS} members")
        return data


def list_zip(path: Path) -> Iterator[Member]:
    """The files of a zip in the order of its central directory, hidden ones and folders left out.

    Raises BuildError where there is none, as at the end of half a download.
    """
    try:
        with _DirectoryReader(io.FileIO(open_regular(path))) as file, zipfile.ZipFile(file) as archive:
            infos = archive.filelist
            archive.NameToInfo.clear()
            _check_overlap(infos, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise failure_from(error, path) from None
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:  # a version of later times
        raise BuildError(f"{path}: no zip, or one that is cut short: {error}; get it again") from None
    infos.reverse()
    tally = MemberLimits(path)
    while infos:  # 700 bytes each
        info = infos.pop()
        tally.add(name := name_bytes(info.filename))
        if (name := clean_name(name)) and not info.is_dir():
            yield Member(name, info.header_offset, info.file_size, _problem(info))


def _check_overlap(infos: list[zipfile.ZipInfo], size: int) -> None:
    """BadZipFile where members share bytes, as in those that unpack to more than any disk holds, or leave the file."""
    if any(not 0 <= info.header_offset <= info.header_offset + info.compress_size <= size for info in infos):
        raise zipfile.BadZipFile(f"members that lie beyond its {size} bytes")
    starts, sizes = (np.fromiter((getattr(info, name) for info in infos), np.int64) for name in _PLACE)
    order = np.argsort(starts)
    if (starts[order][:-1] + LOCAL_HEADER.size + sizes[order][:-1] > starts[order][1:]).any():
        raise zipfile.BadZipFile("members that overlap")


def _problem(info: zipfile.ZipInfo) -> str:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link in the zip"
    return _unreadable_reason(info.flag_bits, info.compress_type) or size_problem(info.file_size)


def _unreadable_reason(flags: int, method: int) -> str:
    """Why a member with these flags and this method of compression cannot be read, "" if it can."""
    if flags & ENCRYPTED:
        return "encrypted in the zip"
    if method in METHODS:
        return ""
    name = zipfile.compressor_names.get(method, "")  # type: ignore[attr-defined]
    return f"compressed by method {method}{f' ({name})' if name else ''}, expected stored or deflated"


def read_member(files: SourceFiles, number: int, place: int, size: int) -> bytes:
    """The `size` bytes of the member whose local header lies at `place` of a file.

    Raises Undecodable where they are damaged, as the CRC-32 of header or data descriptor says, or the local header has
    them encrypted or compressed otherwise than by deflate.
    """
    raw = files.read_some(number, place, LOCAL_HEADER.size)
    if raw[:4] != LOCAL or len(raw) < LOCAL_HEADER.size:
        raise Undecodable(f"damaged zip: no local header at byte {place}")
    _, _, flags, method, _, _, crc, _, _, name_size, extra_size = LOCAL_HEADER.unpack(raw)
    if problem := _unreadable_reason(flags, method):
        raise Undecodable(problem)
    start = place + LOCAL_HEADER.size + name_size + extra_size
    if method == zipfile.ZIP_STORED:
        data, end = files.read_some(number, start, size), start + size
    else:
        data, end = _inflated(files, number, start, size)
    if flags & DESCRIBED_LATER:
        crc = _descriptor_crc(files.read_some(number, end, 8))
    if len(data) != size or zlib.crc32(data) != crc:
        raise Undecodable(f"damaged zip: {len(data)} bytes with CRC {zlib.crc32(data):08x}, expected {size}, {crc:08x}")
    return data


def _inflated(files: SourceFiles, number: int, at: int, size: int) -> tuple[bytes, int]:
    """Up to size + 1 bytes of a deflated stream that begins at `at`, and where it ends."""
    inflater, data, packed = zlib.decompressobj(-zlib.MAX_WBITS), bytearray(), b""
    try:
        while not inflater.eof and len(data) <= size:
            if not packed:
                packed = files.read_some(number, at, min(size + SPARE, CHUNK))
                at += len(packed)
            if not packed:
                break
            data += inflater.decompress(packed, size + 1 - len(data))
            packed = inflater.unconsumed_tail
    except zlib.error as error:
        raise Undecodable(f"damaged zip: {error}") from None
    return bytes(data), at - len(inflater.unused_data)


def _descriptor_crc(descriptor: bytes) -> int:
    """The CRC-32 of a data descriptor, whose signature is optional."""
    found = descriptor[4:8] if descriptor[:4] == DESCRIPTOR else descriptor[:4]
    return int.from_bytes(found, "little")
