"""Files that hold many samples each, such as tars. They are opened when needed, and checked against the plan.

A sample is a place in a holder: bytes at offsets in a file, an object, a part of one, or a gzip stream.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from decodeonce.errors import BuildError, DecodeonceError, Stopped
from decodeonce.formatting import quoted
from decodeonce.prep.listing import Entry, Value, name_bytes
from decodeonce.prep.sources.files import (
    IS_LFS_POINTER,
    LFS_POINTER,
    Links,
    expecting,
    mtime_of,
    open_listed,
    open_source_file,
    read_range,
)
from decodeonce.remote import ObjectFacts, as_path, is_url, read_object, stat_object
from decodeonce.store import disk

OPEN_FILES = 64
GZIP_MAGIC = b"\x1f\x8b"
BZIP2_BLOCK = b"1AY&SY"  # follows "BZh" and a digit; a text may begin with BZh
COMPRESSED = {GZIP_MAGIC: "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
ARCHIVES = {
    b"PK\3\4": ("ZIP", "unzip -q {} -d NEW"),
    b"7z\xbc\xaf": ("7z", "7z x {} -oNEW"),
    b"Rar!": ("RAR", "unrar x {} NEW/"),
}
SPREADSHEETS = (".xlsx", ".xlsm", ".ods")  # which are zips
CHUNK = 1 << 20
# Bytes per request for the headers in an object: a header with the label next to it, or those of many images.
FEW, MANY = 1 << 13, 1 << 21


class SourceFile(NamedTuple):
    """A file at `name` below a source's root, or the root itself if `name` is "", as it was when it was listed.

    Attributes:
        name: Path below the root.
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds; of an object behind a URL, its version.

    Example:
        >>> file = source_file(Path("shards"), "shard-000000.tar")
        >>> file.name
        'shard-000000.tar'
    """

    name: str
    size: int
    mtime_ns: int


def file_path(root: Path, name: str) -> bytes:
    """Return the path of the file `name` below `root`, or `root` itself if `name` is ""."""
    return os.path.join(os.fsencode(root), name_bytes(name)) if name else os.fsencode(root)


def source_file(root: Path, name: str, links: Links | None = None) -> SourceFile:
    """Return the file `name` below `root` as it is now; raise BuildError if it is missing or a forbidden link.

    Args:
        root: Folder that `name` is relative to.
        name: Path of the file; "" for `root` itself.
        links: Which links may be followed; default None allows all.

    Example:
        >>> file = source_file(Path("shards"), "shard-000000.tar")
        >>> file.size == Path("shards/shard-000000.tar").stat().st_size
        True
    """
    path = file_path(root, name)
    if is_url(root):
        return SourceFile(name, *stat_object(os.fsdecode(path)))
    if links is not None:
        links.check(path)
    with expecting(path, "expected a file that holds images"):
        found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise BuildError(f"{os.fsdecode(path)}: not a regular file; expected a file that holds images")
    return SourceFile(name, found.st_size, mtime_of(found))


FileFacts = tuple[str, int, int]  # a SourceFile, or what JSON makes of it, a list


class SourceFiles:
    """The numbered files of a source. Reading raises BuildError if a file is missing or has changed.

    Only some files stay open at a time. `read` must not be used by several threads, except below a URL.

    Args:
        root: Folder that names are relative to.
        files: A `SourceFile` for each file, or what `facts` returned.

    Example:
        >>> root = Path("shards")
        >>> files = SourceFiles(root, [source_file(root, "shard-000000.tar")])
        >>> len(files.read(0, offset=0, size=512))
        512
    """

    def __init__(self, root: Path, files: Iterable[FileFacts]) -> None:
        self.root, self._remote = root, is_url(root)
        self.files = [SourceFile(*file) for file in files]
        self._open: OrderedDict[int, Holder] = OrderedDict()

    def facts(self) -> list[list[str | int]]:
        """Return the files as lists, for JSON."""
        return [list(file) for file in self.files]

    def describe(self, what: str) -> str:
        """Return the number of files as text, with the name if there is only one."""
        return f"{len(self.files)} {what}s" if len(self.files) > 1 else f"1 {what} ({self.files[0].name})"

    def path(self, number: int) -> bytes:
        """Return the path of a file."""
        return file_path(self.root, self.files[number].name)

    @property
    def first(self) -> Path:
        """The path of the first file."""
        return as_path(os.fsdecode(self.path(0)))

    def entry(self, number: int, member: Member, label: int = 0, values: Sequence[Value] = ()) -> Entry:
        """Return the entry of a member of a file. Its name is <file>/<member>."""
        file, _, mtime_ns = self.files[number]
        name = b"/".join(filter(None, (name_bytes(file), member.name)))
        return Entry(name, label, member.size, mtime_ns, member.problem, number, member.place, values=tuple(values))

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Read exactly `size` bytes from `offset`."""
        return read_exactly(self.holder(number), offset, size)

    def holder(self, number: int) -> Holder:
        """Return an open file, checked against the listing when it was opened. Do not close it."""
        if self._remote:
            return self._opened(number)  # which opens nothing
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        holder = self._opened(number)
        if len(self._open) == OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        self._open[number] = holder
        return holder

    @contextmanager
    def opened(self, number: int) -> Iterator[Holder]:
        """Open a file with a descriptor of its own, for a listing in a thread."""
        holder = self._opened(number, listing=True)
        try:
            yield holder
        finally:
            holder.close()

    def _opened(self, number: int, *, listing: bool = False) -> Holder:
        _, size, mtime_ns = self.files[number]
        name = os.fsdecode(path := self.path(number))
        if self._remote:
            return (ListedObject if listing else ObjectHolder)(name, ObjectFacts(size, mtime_ns))
        return Holder(open_listed(path, size, mtime_ns), name, 0, size)

    def close(self) -> None:
        """Close all files. Reading opens them again."""
        while self._open:
            self._open.popitem()[1].close()


@contextmanager
def open_holder(path: Path) -> Iterator[Holder]:
    """Open a file that was not listed; raise OSError if it is no regular file."""
    if is_url(path):
        yield ObjectHolder(str(path), stat_object(str(path)))
        return
    with open(open_source_file(path), "rb") as file:
        yield Holder(file.fileno(), os.fsdecode(path), 0, os.fstat(file.fileno()).st_size)


class Holder:
    """Bytes at offsets: a file that holds samples, or a part of one, such as a tar in a tar.

    All that the readers of tars, zips and tables need is `read_at`, `size`, and `path` for messages. A sample is a
    place in a holder.

    Args:
        fd: Descriptor of the file.
        path: Name in messages.
        first: Offset of the part in the file.
        size: Size of the part in bytes.
    """

    def __init__(self, fd: int, path: str, first: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._first = first

    def read_at(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end."""
        return read_range(self._fd, self.path, self._first + offset, max(0, min(size, self.size - offset)))

    def part(self, first: int, size: int, name: str) -> Holder:
        """Return a part of this holder, which must stay open."""
        return Holder(self._fd, f"{self.path}: {name}", self._first + first, size)

    def read_to_end(self) -> None:
        """Read the rest if that is needed to check integrity. A plain file needs no check."""

    def close(self) -> None:
        """Close the file."""
        disk.close(self._fd)


def refuse_stand_ins(holder: Holder, *, may_be_zip: bool = False, then: str = "") -> None:
    """Raise BuildError if a holder is compressed, an archive, or the pointer that Git LFS leaves in place of it.

    `then`: what to do after a compressed one is unpacked.
    """
    begin = holder.read_at(0, len(LFS_POINTER))
    if begin == LFS_POINTER:
        raise BuildError(f"{holder.path}: {IS_LFS_POINTER}")
    for magic, name in COMPRESSED.items():
        if begin.startswith(magic) and (name != "bzip2" or begin[4:10] == BZIP2_BLOCK):
            packed = _name_in_command(holder)
            new = new_name(holder.path if packed != "FILE" else holder.path.rpartition(": ")[2])  # FILE is in a tar
            command = f"{name} -dc {packed} > {new}"  # gunzip refuses a name without its suffix
            problem = f"compressed with {name}, so it cannot be read at an offset"
            raise BuildError(f"{holder.path}: {problem}; unpack it first: {command}{then}")
    if may_be_zip:
        return
    for magic, (name, command) in ARCHIVES.items():
        if begin.startswith(magic):
            problem, advice = f"a {name} archive", f"unpack it first: {command.format(_name_in_command(holder))}"
            if holder.path.lower().endswith(SPREADSHEETS):
                problem, advice = "a spreadsheet", "save it as CSV"
            raise BuildError(f"{holder.path}: {problem}; {advice}")


def new_name(path: str | Path) -> str:
    """Return a name for what a command makes of a file. It has what sources look for, such as "val" and ".csv"."""
    return quoted("NEW-" + re.sub(r"\.(gz|bz2|xz|zst)$", "", os.path.basename(path)))


def _name_in_command(holder: Holder) -> str:
    return quoted(Path(holder.path)) if os.path.isfile(holder.path) else "FILE"  # it may be in a tar


class ObjectHolder(Holder):
    """A part of an object behind a URL, the whole by default. Several threads may read it.

    It keeps the last bytes that it read, because labels lie next to headers in a tar.

    Args:
        url: The URL.
        facts: The listed version of the object.
        first: Offset of the part in the object.
        size: Size of the part in bytes; default None: all.
        name: Name in messages; default "": the URL.
    """

    _thread = ThreadPoolExecutor(1)  # starts when it is used

    def __init__(self, url: str, facts: ObjectFacts, first: int = 0, size: int | None = None, name: str = "") -> None:
        self.path = name or url
        self.size = facts.size if size is None else size
        self._url, self._facts, self._first = url, facts, first
        self._held = (0, b"")
        self._next: tuple[int, int, Future[bytes]] | None = None

    def read_at(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end."""
        start, held = self._held
        size = max(0, min(size, self.size - offset))
        if not start <= offset <= offset + size <= start + len(held):
            start, held = self._held = offset, self._read(offset, size)
        return held[offset - start : offset - start + size]

    def read_soon(self, offset: int, size: int) -> None:
        """Start to read a range that `read_at` will be asked for."""
        if 0 <= offset < offset + size <= self.size:
            read = self._thread.submit(read_object, self._url, self._facts, self._first + offset, size)
            self._next = (offset, size, read)

    def _read(self, offset: int, size: int) -> bytes:
        if self._next is not None and self._next[:2] == (offset, size):
            return self._next[2].result()
        more = min(max(size, self._at_once(offset)), self.size - offset)
        return read_object(self._url, self._facts, self._first + offset, more)

    def _at_once(self, offset: int) -> int:
        """Return the least number of bytes to request."""
        return FEW

    def part(self, first: int, size: int, name: str) -> Holder:
        return type(self)(self._url, self._facts, self._first + first, size, f"{self.path}: {name}")

    def close(self) -> None:
        """Do nothing: nothing is open."""


class ListedObject(ObjectHolder):
    """An object whose headers are listed, in order.

    Listing requests FEW or MANY bytes, whatever takes it further per second: reading the images in between pays if they
    are small, the latency is high, and few tars share the bandwidth. Both are measured; the first time of FEW includes
    connecting.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tries = [FEW, MANY, FEW]
        self._last = (0, 0, 0.0)  # the last request: its number of bytes, offset and time
        self._speed: dict[int, float] = {}  # by the size of requests: how much further they took the listing per second

    def _at_once(self, offset: int) -> int:
        (size, start, began), now = self._last, time.monotonic()
        self._speed[size] = (offset - start) / (now - began)
        size = self._tries.pop(0) if self._tries else max((FEW, MANY), key=self._speed.__getitem__)
        self._last = (size, offset, now)
        return size


def read_exactly(holder: Holder, offset: int, size: int) -> bytes:
    """Read `size` bytes from `offset`; raise Stopped if the file has become shorter since it was listed."""
    data = holder.read_at(offset, size)
    if len(data) != size:
        raise Stopped(f"{holder.path}: {len(data)} bytes at byte {offset}, expected {size}; run the same command again")
    return data


class GzipStream(Holder):
    """The unpacked bytes of a gzip file.

    Reading forward unpacks everything in between. Reading backward starts again at the beginning.

    Args:
        packed: The gzip file; it stays open when the stream is closed.
        failure: The exception to raise if the file is damaged.
    """

    def __init__(self, packed: Holder, failure: type[DecodeonceError]) -> None:
        self.path = packed.path
        self.size = sys.maxsize  # known only after the end was read
        self._failure = failure
        self._stream = gzip.GzipFile(fileobj=io.BufferedReader(HolderFile(packed), CHUNK))

    def read_at(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end."""
        try:
            found = self._stream.seek(offset)
            data = self._stream.read(size) if found == offset else b""
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            advice = "download it again; if its disk failed, run the same command again"
            raise self._failure(f"{self.path}: cannot be unpacked at byte {offset}: {error}; {advice}") from None
        if len(data) < size:
            self.size = found + len(data)
        return data

    def read_to_end(self) -> None:
        """Unpack the rest, to check that the stream is complete."""
        while self.read_at(self._stream.tell(), CHUNK):
            pass


class HolderFile(io.RawIOBase):
    """A holder as a file object of Python, for libraries that read one."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:  # io.BufferedReader calls it often, and the one of the base class calls seek
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + (0, self._at, self._holder.size)[whence]
        if at < 0:
            raise io.UnsupportedOperation(f"no byte {at}")
        self._at = at
        return at

    def read(self, size: int = -1, /) -> bytes:
        data = self._holder.read_at(self._at, size if size >= 0 else self._holder.size - self._at)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
        name: Its path, without a leading "./".
        place: In a tar, the offset of the file's first byte. In a zip, the offset of its local header.
        size: Its unpacked size in bytes.
        problem: Why it cannot become a row; default "": it can.
    """

    name: bytes
    place: int
    size: int
    problem: str = ""

    @property
    def base_name(self) -> bytes:
        return self.name.rpartition(b"/")[2]
