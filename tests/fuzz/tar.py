"""Tars: the listing, which reads only headers, and the samples of their members."""

import io
import json
import os
import tarfile
from collections.abc import Iterator
from random import Random

from decodeonce.errors import BuildError
from decodeonce.prep.sources.archives import BLOCK, list_tar
from decodeonce.prep.sources.files import MAX_FILE_BYTES
from decodeonce.prep.sources.holders import Holder
from decodeonce.prep.sources.webdataset import MAX_LABEL_BYTES, Naming
from tests.fuzz import Mutate

FILE = os.memfd_create("fuzz-tar")
CHECKSUM = slice(148, 156)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
KINDS = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE)


def seeds() -> Iterator[bytes]:
    """Yield tars of each format with names of many kinds, and sparse files in every encoding."""
    files = {"a.jpg": b"picture", "a.cls": b"1", "a.json": json.dumps({"label": 2}).encode(), "./b/c.txt": b"n01440764"}
    files |= {"é\udcff.png": b"x", "long/" * 20 + "d.jpeg": b"y"}
    for format_ in FORMATS:
        yield make_tar(files, format_)
    yield make_tar({"link.jpg": b""}, tarfile.GNU_FORMAT, KINDS)
    for facts in (
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s.jpg", "GNU.sparse.realsize": "9"},
        {"GNU.sparse.map": "0,1,5,2", "GNU.sparse.size": "9"},
        {"GNU.sparse.offset": "0", "GNU.sparse.numbytes": "1", "GNU.sparse.size": "9"},
        {"size": "3", "path": "renamed.jpg", "mtime": "1.5", "uid": "7", "hdrcharset": "BINARY"},
    ):
        yield make_tar({"s.jpg": b"1\n0\n1\n" + bytes(600)}, tarfile.PAX_FORMAT, pax_headers=facts)
    info = tarfile.TarInfo("a.jpg")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:483] = b"%011o\0" % 0 * 8 + b"\1"  # four parts; more should be in the next block: once an IndexError
    yield fix_checksums(bytes(header))


def make_tar(
    files: dict[str, bytes], format_: int, kinds: tuple[bytes, ...] = (), pax_headers: dict[str, str] | None = None
) -> bytes:
    """Return a tar of these files, each once as a regular file and once of each of `kinds`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format_, errors="surrogateescape") as tar:
        for name, data in files.items():
            for kind in (tarfile.REGTYPE, *kinds):
                info = tarfile.TarInfo(name if "\udcff" not in name or format_ == tarfile.GNU_FORMAT else "é.png")
                info.size, info.type, info.linkname = len(data), kind, "a.jpg" * (kind != tarfile.REGTYPE)
                info.pax_headers = dict(pax_headers or {})
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change, copy or remove a block of 512 bytes, or let libFuzzer change the bytes; then fix the checksums."""
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)] or [b""]
    index, kind = random.randrange(len(blocks)), random.randrange(5)
    if kind == 0:
        return fix_checksums(mutate(data, size))
    if kind == 1:
        blocks.insert(random.randrange(len(blocks)), blocks[index])
    elif kind == 2:
        del blocks[index]
    else:
        blocks[index] = mutate(blocks[index], BLOCK).ljust(BLOCK, b"\0")
    return fix_checksums(b"".join(blocks))[:size]


def fix_checksums(data: bytes) -> bytes:
    """Write the right checksum into each block of a tar that looks like a header."""
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    return b"".join(_fix_checksum(block) if block[257:262] == b"ustar" else block for block in blocks)


def _fix_checksum(block: bytes) -> bytes:
    if len(block) < BLOCK:
        return block
    total = sum(block) - sum(block[CHECKSUM]) + 8 * ord(" ")
    return block[: CHECKSUM.start] + b"%06o\0 " % total + block[CHECKSUM.stop :]


def TestOneInput(data: bytes) -> None:
    """List the tar as a shard, and read its labels."""
    os.ftruncate(FILE, 0)
    os.pwrite(FILE, data, 0)
    tar = Holder(FILE, "fuzz.tar", 0, len(data))
    try:
        members = list(list_tar(tar))
    except BuildError:
        return
    for member in members:
        assert member.problem or 0 <= member.place <= member.place + member.size <= len(data), member
        assert member.problem or 0 < member.size <= MAX_FILE_BYTES
    for sample in Naming().samples(tar):
        assert len(sample.label) <= MAX_LABEL_BYTES
