"""List the members of tars and zips from their headers alone, and read a member of a zip."""

from __future__ import annotations

import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import pairwise

import numpy as np

from decodeonce.errors import BuildError
from decodeonce.prep.listing import Undecodable, name_bytes
from decodeonce.prep.sources.files import size_problem
from decodeonce.prep.sources.holders import CHUNK, Holder, HolderFile, Member, refuse_stand_ins

MAX_NAME_BYTES = 1 << 16  # the longest name that a zip can store; file systems allow at most 4096
MAX_MEMBERS = 1 << 23  # per archive: a listing holds 400 bytes for each, 700 for a zip's; Kaggle's zip has 2 million
MAX_NAMES_BYTES = 1 << 30  # of all names of an archive: a listing holds them too
# A tar program that does not know pax headers writes them to files in PaxHeaders.1234/.
_HIDDEN = re.compile(rb"(?:^|/)(?:\.(?!\.(?:/|$))|PaxHeaders?(?:\.\d+)?/)")

BLOCK = tarfile.BLOCKSIZE
# Limit for all headers of one member (long names, pax, sparse maps), which tarfile reads whole.
MAX_HEADER_BYTES = 1 << 20
# Python before 3.11.10 and 3.12.6 searches pax headers for numbers in time that grows with the square of their length.
_LONG_NUMBER = re.compile(rb"[0-9]{256}")

# APPNOTE.TXT 4.3.7: signature, version, flags, method, time, date, CRC-32, two sizes, lengths of name and extra field
LOCAL_HEADER = struct.Struct("<4s5HL2L2H")
LOCAL, CENTRAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
ENCRYPTED, DESCRIBED_LATER = 0x1, 0x8
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
SPARE = 512  # a deflated JPEG may be this many bytes larger than the JPEG itself
# Limit for the central directory, which zipfile reads whole; that of Kaggle's zip has 0.3 GB.
MAX_DIRECTORY_BYTES = 1 << 30


class _Names:
    """Cleans the names of an archive's members, and counts both, because a listing holds them in memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._members = self._bytes = 0

    def clean(self, text: str) -> bytes:
        """Return `clean_name` of the next member; raise BuildError if a limit is exceeded."""
        name = name_bytes(text)
        self._members += 1
        self._bytes += len(name)
        if len(name) > MAX_NAME_BYTES:
            raise BuildError(
                f"{self._path}: a name has {len(name)} bytes, expected at most {MAX_NAME_BYTES}; shorten it"
            )
        if self._members > MAX_MEMBERS or self._bytes > MAX_NAMES_BYTES:
            raise BuildError(
                f"{self._path}: more than {MAX_MEMBERS} members, or {MAX_NAMES_BYTES} bytes of names; split the archive"
            )
        return clean_name(name)


def clean_name(name: bytes) -> bytes:
    """Return a name without leading "/" and without "./"; b"" if it is hidden (".name", or "._name" of macOS)."""
    if name[:1] in (b"/", b".") or b"/." in name or b"//" in name:
        name = b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))
    return b"" if _HIDDEN.search(name) else name


def sort_members(members: Iterable[Member], archive: str) -> list[Member]:
    """Sort members like a walk of the unpacked tree. All but the last member of the same name get a problem."""
    found = sorted(members, key=lambda member: member.name.split(b"/"))
    twice = f"occurs twice in the {archive}; the later one is used"
    earlier = [this._replace(problem=twice) if this.name == next_.name else this for this, next_ in pairwise(found)]
    return [*earlier, *found[-1:]]


class _HeaderReader(HolderFile):
    """The file that tarfile reads. It allows at most MAX_HEADER_BYTES of headers per member."""

    left = MAX_HEADER_BYTES

    def read(self, size: int = -1, /) -> bytes:
        """Read the next `size` bytes; raise tarfile.ReadError for an implausible header."""
        self.left -= size
        if not 0 <= size <= size + self.left:
            raise tarfile.ReadError(f"headers of more than {MAX_HEADER_BYTES} bytes before byte {self._at}")
        data = super().read(size)
        if size > BLOCK and _LONG_NUMBER.search(data):
            raise tarfile.ReadError(f"a number of more than 256 digits in a header before byte {self._at}")
        return data


def list_tar(holder: Holder, no_end: Callable[[], object] | None = None) -> Iterator[Member]:
    """Yield the files of a tar in their order, except hidden ones, and those of tars that were appended to it with cat.

    Args:
        holder: The tar.
        no_end: Called if the tar ends after a whole member, without the empty blocks that end a tar. GNU tar reads such
            a tar, but it looks like an incomplete download, too. Default None: it is an error.

    Raises:
        BuildError: If the tar is compressed, damaged or truncated, such as an incomplete download.
    """
    refuse_stand_ins(holder)
    headers, names = _HeaderReader(holder), _Names(holder.path)
    start: int | None = 0
    while start is not None:
        headers.seek(start)
        end = yield from _list_one_tar(holder, headers, names, no_end)
        start = _next_start(holder, end)


def _list_one_tar(
    holder: Holder, headers: _HeaderReader, names: _Names, no_end: Callable[[], object] | None
) -> Generator[Member, None, int]:
    """Yield the files of the tar that begins where `headers` is. Return the offset of its end."""
    try:
        tar = tarfile.TarFile(fileobj=headers, encoding="utf-8", errors="surrogateescape")
        for info in iter(tar.next, None):
            headers.left = MAX_HEADER_BYTES
            tar.members = []  # type: ignore[attr-defined]  # otherwise tarfile keeps all of them
            if tar.offset <= info.offset or info.size < 0 or info.offset_data < 0:
                raise tarfile.ReadError(f"bad header at byte {info.offset}")
            if tar.pax_headers and sum(map(len, tar.pax_headers.values())) > MAX_HEADER_BYTES:
                raise tarfile.ReadError(f"global headers of more than {MAX_HEADER_BYTES} bytes")
            if tar.offset > holder.size:
                raise _truncated(holder, tar.offset, info.name)
            if (clean := names.clean(info.name)) and not info.isdir():
                yield Member(clean, info.offset_data, info.size, _problem_in_tar(info))
    except RecursionError:
        raise BuildError(f"{holder.path}: not a tar, or damaged: nested headers; download it again") from None
    except (tarfile.TarError, ValueError, IndexError, OverflowError) as error:  # IndexError: a truncated sparse map
        if headers.tell() >= holder.size:
            raise _truncated(holder, holder.size + BLOCK, "a header") from None
        raise BuildError(f"{holder.path}: not a tar, or damaged: {error}; download it again") from None
    _check_end(holder, tar.offset, no_end, ran_out=headers.tell() >= holder.size)
    return int(tar.offset)


def _check_end(holder: Holder, at: int, no_end: Callable[[], object] | None, *, ran_out: bool) -> None:
    """Check the end: tarfile treats any invalid header as the end. A tar ends with two empty blocks; require one."""
    block = holder.read_at(at, BLOCK)
    if no_end and not block:
        no_end()
    elif len(block) < BLOCK or (ran_out and any(block)):  # also if the tar ends in the middle of a pax header
        raise _truncated(holder, at + BLOCK, "the empty block that ends a tar")
    elif any(block):
        raise BuildError(f"{holder.path}: damaged: no tar header at byte {at}; download it again")


def _next_start(holder: Holder, at: int) -> int | None:
    """Return the offset of the first block from `at` on that is not empty; None if there is none."""
    while data := holder.read_at(at, CHUNK):
        if kept := len(data.lstrip(b"\0")):
            start = at + (len(data) - kept) // BLOCK * BLOCK
            return start if len(holder.read_at(start, BLOCK)) == BLOCK else None  # no header is so short
        at += len(data)
    return None


def _truncated(holder: Holder, expected: int, what: str) -> BuildError:
    found = f"ends at byte {holder.size}, expected at least {expected} ({what})"
    return BuildError(f"{holder.path}: truncated: {found}; download it again")


def _problem_in_tar(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "a link in the tar"
    if info.issparse():
        return "a sparse file in the tar"
    return size_problem(info.size) if info.isreg() else "not a regular file"


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
    refuse_stand_ins(holder, may_be_zip=True)
    try:
        with _DirectoryReader(HolderFile(holder)) as file, zipfile.ZipFile(file) as archive:
            infos = archive.filelist
            archive.NameToInfo.clear()
            _check_overlap(infos, holder.size)
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        # NotImplementedError: a newer version of the format
        raise BuildError(f"{holder.path}: not a zip, or truncated: {error}; download it again") from None
    infos.reverse()
    names = _Names(holder.path)
    while infos:  # frees 700 bytes per member
        info = infos.pop()
        if (clean := names.clean(info.filename)) and not info.is_dir():
            yield Member(clean, info.header_offset, info.file_size, _problem_in_zip(info))


def _check_overlap(infos: list[zipfile.ZipInfo], size: int) -> None:
    """Raise BadZipFile if members overlap, as in zip bombs, or reach beyond the end of the file."""
    if any(not 0 <= info.header_offset <= info.header_offset + info.compress_size <= size for info in infos):
        raise zipfile.BadZipFile(f"members beyond its {size} bytes")
    starts = np.fromiter((info.header_offset for info in infos), np.int64)
    sizes = np.fromiter((info.compress_size for info in infos), np.int64)
    order = np.argsort(starts)
    if (starts[order][:-1] + LOCAL_HEADER.size + sizes[order][:-1] > starts[order][1:]).any():
        raise zipfile.BadZipFile("overlapping members")


def _problem_in_zip(info: zipfile.ZipInfo) -> str:
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
    """Read the member of a zip whose local header is at offset `place`, and check its CRC-32.

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
    if flags & DESCRIBED_LATER:  # in a data descriptor, whose signature is optional
        crc = int.from_bytes(holder.read_at(end, 8).removeprefix(DESCRIPTOR)[:4], "little")
    if len(data) != size or zlib.crc32(data) != crc:
        raise Undecodable(f"damaged zip: {len(data)} bytes with CRC {zlib.crc32(data):08x}, expected {size}, {crc:08x}")
    return data


def _inflated(holder: Holder, at: int, size: int) -> tuple[bytes, int]:
    """Unpack up to size + 1 bytes of the deflated stream at offset `at`. Return them and the offset of its end."""
    inflater, data = zlib.decompressobj(-zlib.MAX_WBITS), bytearray()
    try:
        while not inflater.eof and len(data) <= size and (packed := holder.read_at(at, min(size + SPARE, CHUNK))):
            data += inflater.decompress(packed, size + 1 - len(data))
            at += len(packed)
    except zlib.error as error:
        raise Undecodable(f"damaged zip: {error}") from None
    return bytes(data), at - len(inflater.unused_data)
