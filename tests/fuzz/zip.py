"""Zips: the listing from the central directory, and the bytes of each member."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from random import Random

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.entry import Undecodable
from decodeonce.prep.sources.base import MAX_FILE_BYTES
from decodeonce.prep.sources.files import SourceFiles, source_file
from decodeonce.prep.sources.formats.zipped import list_zip, read_member
from tests.fuzz import Mutate
from tests.fuzz.scratch import scratch

FILE = scratch("zip") / "fuzz.zip"
MOST_READ = 1 << 20
NAMES = {"train/n01440764/a.JPEG": b"picture" * 9, "é.csv": b"a,b\n", "empty": b""}
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def seeds() -> Iterator[bytes]:
    """Stored, deflated, of a method that is not read, in zip64, and written to a pipe, which puts sizes last."""
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        yield written(io.BytesIO(), method)
    yield written(io.BytesIO(), zipfile.ZIP_STORED, zip64=True)
    yield written(_Pipe(), zipfile.ZIP_DEFLATED)


class _Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError("a pipe")


def written(out: io.BytesIO, method: int, *, zip64: bool = False) -> bytes:
    """A zip of some files."""
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in NAMES.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with archive.open(info, "w", force_zip64=zip64) as member:
                member.write(data)
    return out.getvalue()


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Other bytes in one header, mostly: elsewhere they are the content's, which its CRC protects."""
    starts = [at for mark in (LOCAL, CENTRAL, END) for at in range(len(data)) if data.startswith(mark, at)]
    if not starts or not random.randrange(4):
        return mutate(data, size)
    at = random.choice(starts) + 4
    changed = mutate(data[at : at + 42], 42)
    return (data[:at] + changed + data[at + 42 :])[:size]


def TestOneInput(data: bytes) -> None:
    """List it, and read what a build would read."""
    FILE.write_bytes(data)
    try:
        members = list(list_zip(FILE))
    except BuildError:
        return
    files = SourceFiles(FILE.parent, [source_file(FILE.parent, FILE.name)])
    for member in members:
        assert member.problem or 0 < member.size <= MAX_FILE_BYTES
        if member.problem or member.size > MOST_READ:
            continue
        try:
            found = read_member(files, 0, member.place, member.size)
        except (Undecodable, Stopped):
            continue
        assert len(found) == member.size
    files.close()
