"""Zips: the listing, which reads the central directory, and the bytes of each member."""

import io
import zipfile
from collections.abc import Iterator
from random import Random

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.listing import Undecodable
from decodeonce.prep.sources.archives import list_zip, read_member
from decodeonce.prep.sources.files import MAX_FILE_BYTES
from decodeonce.prep.sources.holders import Holder, open_holder
from tests.fuzz import Mutate, scratch
from tests.images import replaced

FILE = scratch("zip") / "fuzz.zip"
MAX_READ_BYTES = 1 << 20
NAMES = {"train/n01440764/a.JPEG": b"picture" * 9, "é.csv": b"a,b\n", "empty": b""}
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def seeds() -> Iterator[bytes]:
    """Yield zips: stored, deflated, with an unsupported method, zip64, and written to a pipe, with sizes after data."""
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        yield make_zip(io.BytesIO(), method)
    yield make_zip(io.BytesIO(), zipfile.ZIP_STORED, zip64=True)
    yield (whole := make_zip(Pipe(), zipfile.ZIP_DEFLATED))
    yield replaced(whole, whole.index(CENTRAL) + 6, bytes([69]))  # the version needed to extract: once an error


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError("a pipe")


def make_zip(out: io.BytesIO, method: int, *, zip64: bool = False) -> bytes:
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in NAMES.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with archive.open(info, "w", force_zip64=zip64) as member:
                member.write(data)
    return out.getvalue()


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change a header (3 of 4 times), or let libFuzzer change the bytes, most of which are content with a CRC."""
    starts = [start for mark in (LOCAL, CENTRAL, END) for start in range(len(data)) if data.startswith(mark, start)]
    if not starts or not random.randrange(4):
        return mutate(data, size)
    start = random.choice(starts) + 4
    changed = mutate(data[start : start + 42], 42)
    return (data[:start] + changed + data[start + 42 :])[:size]


def TestOneInput(data: bytes) -> None:
    """List the zip, and read the members that a build would read."""
    FILE.write_bytes(data)
    with open_holder(FILE) as holder:
        _read(holder)


def _read(holder: Holder) -> None:
    try:
        members = list(list_zip(holder))
    except BuildError:
        return
    for member in members:
        assert member.problem or 0 < member.size <= MAX_FILE_BYTES
        if member.problem or member.size > MAX_READ_BYTES:
            continue
        try:
            content = read_member(holder, member.place, member.size)
        except (Undecodable, Stopped):
            continue
        assert len(content) == member.size
