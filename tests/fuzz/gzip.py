"""Gzip-compressed tars, which are read from start to end."""

import gzip
import os
import zlib
from collections.abc import Iterator
from random import Random

from decodeonce.errors import BuildError
from decodeonce.prep.sources.holders import GzipStream, Holder
from decodeonce.prep.sources.webdataset import Naming
from tests.fuzz import Mutate, tar

FILE = os.memfd_create("fuzz-gzip")


def seeds() -> Iterator[bytes]:
    """Yield the compressed seeds of the tar target, the first of them as two gzip members."""
    first, *others = tar.seeds()
    yield compress(first[:700]) + compress(first[700:])
    yield from map(compress, others)


def compress(data: bytes) -> bytes:
    """Return a gzip stream without a date, so that it is always the same."""
    return gzip.compress(data, mtime=0)


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change the tar in the stream (3 of 4 times) or the bytes of the stream."""
    if random.randrange(4):
        try:
            whole = zlib.decompressobj(31).decompress(data, 1 << 16)
            return compress(tar.mutate(whole, 1 << 16, random, mutate))[:size]
        except (OSError, EOFError, zlib.error):
            pass
    return mutate(data, size)


def TestOneInput(data: bytes) -> None:
    """List the tar and read its labels to the end, as a build does."""
    os.ftruncate(FILE, 0)
    os.pwrite(FILE, data, 0)
    try:
        stream = GzipStream(Holder(FILE, "fuzz.tgz", 0, len(data)), BuildError)
        for sample in Naming().samples(stream):
            assert sample.member.name
        stream.read_to_end()
    except BuildError:
        pass
