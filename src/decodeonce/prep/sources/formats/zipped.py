"""List a zip from its central directory alone, and read one member at a known offset."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Undecodable, name_bytes
from decodeonce.prep.sources.files import size_problem
from decodeonce.prep.sources.formats.member import MAX_MEMBERS, Member, MemberLimits, clean_name
from decodeonce.prep.sources.holders import CHUNK, Holder, HolderFile

# APPNOTE.TXT 4.3.7: signature, version, flags, method, time, date, CRC-32, two sizes, lengths of name and extra field
LOCAL_HEADER = struct.Struct("<4s5HL2L2H")
LOCAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
ENCRYPTED, DESCRIBED_LATER = 0x1, 0x8
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
SPARE = 512  # a deflated JPEG may be this many bytes larger than the JPEG itself
# Limit for the central directory, which zipfile reads whole; that of Kaggle's zip has 0.3 GB.
MAX_DIRECTORY_BYTES = 1 << 30
CENTRAL = b"PK\x01\x02"  # signature of a member's entry in the central directory


class _DirectoryReader(io.BufferedReader):
    """The file that zipfile reads. It bounds the central directory: zipfile makes 700 bytes per member."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read the next `size` bytes; raise zipfile.BadZipFile if the directory would take too much memory."""
        if size is not None and size > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"the central directory has {size} bytes, expected at most {MAX_DIRECTORY_BYTES}")
        data = super().read(size)
        if data.count(CENTRAL) > MAX_MEMBERS:
            raise zipfile.BadZipFile(f"more than {MAX_MEMBERS} members")
        return data


def list_zip(holder: Holder) -> Iterator[Member]:
    """Yield the files of a zip in the order of its central directory, except hidden ones.

    Raises:
        BuildError: If the zip is damaged or truncated, such as an incomplete download.
    """
    try:
        with _DirectoryReader(HolderFile(holder)) as file, zipfile.ZipFile(file) as archive:
            infos = archive.filelist
            archive.NameToInfo.clear()
            _check_overlap(infos, holder.size)
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        # NotImplementedError: a newer version of the format
        raise BuildError(f"{holder.path}: not a zip, or truncated: {error}; download it again") from None
    infos.reverse()
    limits = MemberLimits(holder.path)
    while infos:  # frees 700 bytes per member
        info = infos.pop()
        limits.add(name := name_bytes(info.filename))
        if (name := clean_name(name)) and not info.is_dir():
            yield Member(name, info.header_offset, info.file_size, _problem(info))


def _check_overlap(infos: list[zipfile.ZipInfo], size: int) -> None:
    """Raise BadZipFile if members overlap, as in zip bombs, or reach beyond the end of the file."""
    if any(not 0 <= info.header_offset <= info.header_offset + info.compress_size <= size for info in infos):
        raise zipfile.BadZipFile(f"members beyond its {size} bytes")
    starts = np.fromiter((info.header_offset for info in infos), np.int64)
    sizes = np.fromiter((info.compress_size for info in infos), np.int64)
    order = np.argsort(starts)
    if (starts[order][:-1] + LOCAL_HEADER.size + sizes[order][:-1] > starts[order][1:]).any():
        raise zipfile.BadZipFile("overlapping members")


def _problem(info: zipfile.ZipInfo) -> str:
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link in the zip"
    return _unreadable_reason(info.flag_bits, info.compress_type) or size_problem(info.file_size)


def _unreadable_reason(flags: int, method: int) -> str:
    """Return why a member with these flags and this compression method cannot be read, or "" if it can."""
    if flags & ENCRYPTED:
        return "encrypted in the zip"
    if method in METHODS:
        return ""
    name = zipfile.compressor_names.get(method, "")  # type: ignore[attr-defined]
    return f"compressed by method {method}{f' ({name})' if name else ''}, expected stored or deflated"


def read_member(holder: Holder, place: int, size: int) -> bytes:
    """Read the member whose local header is at offset `place`, and check its CRC-32.

    Raises:
        Undecodable: If the member is damaged, encrypted, or compressed with a method other than deflate.
    """
    raw = holder.read_at(place, LOCAL_HEADER.size)
    if raw[:4] != LOCAL or len(raw) < LOCAL_HEADER.size:
        raise Undecodable(f"damaged zip: no local header at byte {place}")
    _, _, flags, method, _, _, crc, _, _, name_size, extra_size = LOCAL_HEADER.unpack(raw)
    if problem := _unreadable_reason(flags, method):
        raise Undecodable(problem)
    start = place + LOCAL_HEADER.size + name_size + extra_size
    if method == zipfile.ZIP_STORED:
        data, end = holder.read_at(start, size), start + size
    else:
        data, end = _inflated(holder, start, size)
    if flags & DESCRIBED_LATER:
        crc = _descriptor_crc(holder.read_at(end, 8))
    if len(data) != size or zlib.crc32(data) != crc:
        raise Undecodable(f"damaged zip: {len(data)} bytes with CRC {zlib.crc32(data):08x}, expected {size}, {crc:08x}")
    return data


def _inflated(holder: Holder, at: int, size: int) -> tuple[bytes, int]:
    """Unpack up to size + 1 bytes of the deflated stream at offset `at`. Return them and the offset of its end."""
    inflater, data, packed = zlib.decompressobj(-zlib.MAX_WBITS), bytearray(), b""
    try:
        while not inflater.eof and len(data) <= size:
            if not packed:
                packed = holder.read_at(at, min(size + SPARE, CHUNK))
                at += len(packed)
            if not packed:
                break
            data += inflater.decompress(packed, size + 1 - len(data))
            packed = inflater.unconsumed_tail
    except zlib.error as error:
        raise Undecodable(f"damaged zip: {error}") from None
    return bytes(data), at - len(inflater.unused_data)


def _descriptor_crc(descriptor: bytes) -> int:
    """Return the CRC-32 of a data descriptor, whose signature is optional."""
    found = descriptor[4:8] if descriptor[:4] == DESCRIPTOR else descriptor[:4]
    return int.from_bytes(found, "little")
