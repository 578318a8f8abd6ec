"""Gzip streams of tars, read forward."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import closing
from random import Random

from decodeonce.errors import BuildError
from decodeonce.prep.sources.formats.gzipped import GzipStream
from decodeonce.prep.sources.formats.member import Member
from decodeonce.prep.sources.formats.samples import read_samples
from decodeonce.prep.sources.formats.tar import list_tar
from tests.fuzz import Mutate, tar

FILE = os.memfd_create("fuzz-gzip")


def seeds() -> Iterator[bytes]:
    """What tar has, packed; the first in two members of a stream."""
    first, *others = tar.seeds()
    yield packed(first[:700]) + packed(first[700:])
    yield from map(packed, others)


def packed(data: bytes) -> bytes:
    """A gzip stream, the same every time."""
    return gzip.compress(data, mtime=0)


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Another tar in the stream, mostly; else other bytes of the stream."""
    if random.randrange(4):
        try:
            return packed(tar.mutate(_unpacked(data), 1 << 16, random, mutate))[:size]
        except (OSError, EOFError, zlib.error):
            pass
    return mutate(data, size)


def _unpacked(data: bytes) -> bytes:
    return zlib.decompressobj(31).decompress(data, 1 << 16)


def TestOneInput(data: bytes) -> None:
    """List it and read the labels, as a build does, which reads to the end."""
    os.ftruncate(FILE, 0)
    os.pwrite(FILE, data, 0)
    try:
        with closing(GzipStream(FILE, "fuzz.tgz", BuildError)) as stream:

            def read(member: Member) -> bytes:
                stream.seek(member.place)
                return stream.read(member.size)

            for sample in read_samples(list_tar(stream), read):
                assert sample.name
            stream.read_to_end()
    except BuildError:
        pass
