"""Zips: their listing from the central directory alone, and the bytes of one member at a known place."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from decodeonce.errors import BuildError, failure_from
from decodeonce.prep.sources.base import Undecodable, name_bytes
from decodeonce.prep.sources.files import SourceFiles
from decodeonce.prep.sources.formats.member import Member, plain_name, size_problem

# APPNOTE.TXT 4.3.7: signature, version, flags, method, time, date, CRC-32, two sizes, lengths of name and extra field
LOCAL_HEADER = struct.Struct("<4s5HL2L2H")
LOCAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
ENCRYPTED, DESCRIBED_LATER = 0x1, 0x8
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
NAME_AND_EXTRA = 512  # most have some 100 bytes: header and data then come in one read
CHUNK = 1 << 20


def list_zip(path: Path) -> Iterator[Member]:
    """The files of a zip in the order of its central directory, hidden ones and folders left out.

    Raises BuildError where there is none, as at the end of half a download.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.filelist
            archive.NameToInfo.clear()
    except OSError as error:
        raise failure_from(error, path) from None
    except (zipfile.BadZipFile, ValueError, struct.error) as error:
        raise BuildError(f"{path}: no zip, or one that is cut short: {error}; get it again") from None
    infos.reverse()
    while infos:  # 700 bytes each
        info = infos.pop()
        name = plain_name(name_bytes(info.filename))
        if name and not info.is_dir():
            yield Member(name, info.header_offset, info.file_size, _problem(info))


def _problem(info: zipfile.ZipInfo) -> str:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link in the zip"
    return _unreadable(info.flag_bits, info.compress_type) or size_problem(info.file_size)


def _unreadable(flags: int, method: int) -> str:
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
    raw = files.read_some(number, place, LOCAL_HEADER.size + NAME_AND_EXTRA + size)
    if raw[:4] != LOCAL or len(raw) < LOCAL_HEADER.size:
        raise Undecodable(f"damaged zip: no local header at byte {place}")
    _, _, flags, method, _, _, crc, _, _, name_bytes_, extra_bytes = LOCAL_HEADER.unpack_from(raw)
    if problem := _unreadable(flags, method):
        raise Undecodable(problem)
    start = place + LOCAL_HEADER.size + name_bytes_ + extra_bytes
    known = raw[start - place :]
    if method == zipfile.ZIP_STORED:
        data = known[:size] + files.read_some(number, start + len(known), max(0, size - len(known)))
        end = start + size
    else:
        data, end = _inflated(files, number, start, known, size)
    if flags & DESCRIBED_LATER:
        crc = _later_crc(files.read_some(number, end, 8))
    if len(data) != size or zlib.crc32(data) != crc:
        raise Undecodable(f"damaged zip: {len(data)} bytes with CRC {zlib.crc32(data):08x}, expected {size}, {crc:08x}")
    return data


def _inflated(files: SourceFiles, number: int, start: int, known: bytes, size: int) -> tuple[bytes, int]:
    """Up to size + 1 bytes of a deflated stream that begins at `start`, and where it ends."""
    inflater, data = zlib.decompressobj(-zlib.MAX_WBITS), b""
    known = known or files.read_some(number, start, CHUNK)
    at = start + len(known)
    try:
        while known and not inflater.eof and len(data) <= size:
            data += inflater.decompress(known, size + 1 - len(data))
            known = inflater.unconsumed_tail
            if not known and not inflater.eof:
                known = files.read_some(number, at, CHUNK)
                at += len(known)
    except zlib.error as error:
        raise Undecodable(f"damaged zip: {error}") from None
    return data, at - len(inflater.unused_data)


def _later_crc(descriptor: bytes) -> int:
    """The CRC-32 of a data descriptor, whose signature is optional."""
    found = descriptor[4:8] if descriptor[:4] == DESCRIPTOR else descriptor[:4]
    return int.from_bytes(found, "little")
