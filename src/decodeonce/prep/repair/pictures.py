"""The encoded bytes of pictures by the names that samples.tsv has for them; neither labels nor options are needed.

A name says where its picture lies: the file of that name, or the archive that the name's beginning leads to, and the
place in it. Of archives headers are read until all that are wanted were found.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from decodeonce.errors import PASSING_ERRORS, BuildError, StoreError, failure_from
from decodeonce.prep.entry import Undecodable
from decodeonce.prep.sources.base import MAX_FILE_BYTES, WITH_BOXES, open_listed, read_range
from decodeonce.prep.sources.files import SourceFiles, source_file
from decodeonce.prep.sources.formats import table_columns, tables
from decodeonce.prep.sources.formats.gzipped import MAGIC, GzipStream
from decodeonce.prep.sources.formats.member import Member, size_problem
from decodeonce.prep.sources.formats.patterns import find_files
from decodeonce.prep.sources.formats.tar import Window, list_tar
from decodeonce.prep.sources.formats.zipped import list_zip, read_member
from decodeonce.prep.sources.webdataset import SUFFIXES
from decodeonce.store import disk
from decodeonce.store.files import read_regular

Found = Iterator[tuple[bytes, bytes]]


class Wanted:
    """The names that are still looked for; whoever has what he wants of a name strikes it out."""

    def __init__(self, names: set[bytes]) -> None:
        self.names = names
        self.problems: dict[bytes, str] = {}

    def of(self, inner: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Those places in an archive whose names are still looked for."""
        return {place: name for place, name in inner.items() if name in self.names}


def roots_of(kind: str, source: str) -> list[Path]:
    """Where the names of a store whose source was of this kind begin, given the SRC of its build.

    BuildError where nothing is there.
    """
    kind = kind.removesuffix(WITH_BOXES)
    if kind in ("webdataset", "parquet"):
        suffixes = SUFFIXES if kind == "webdataset" else (".parquet",)
        root, _ = find_files(source, suffixes, deep=kind == "parquet")
        return [root, Path(source)] if os.path.isdir(source) else [root]
    path = Path(source)
    if path.is_dir():
        return [path]
    if not path.exists():
        raise BuildError(f"{source}: no such file or folder; expected what the store was built from")
    return [path.absolute().parent] if kind == "list" else [path, path.absolute().parent]


def find_pictures(roots: list[Path], wanted: Wanted) -> Found:
    """(name, bytes) of what bears a wanted name, all that do, until none is wanted any more.

    Why others were not found is in `wanted.problems`, where that is known. Raises Stopped for what may pass.
    """
    for root in roots:
        archives: dict[bytes, dict[bytes, bytes]] = {}
        for name in sorted(wanted.names):
            path, inner = _place(os.fsencode(root), name)
            if inner:
                archives.setdefault(path, {})[inner] = name
            elif path:
                yield from _file(path, name, wanted)
        for path, names in archives.items():
            try:
                yield from _in_archive(Path(os.fsdecode(path)), names, wanted)
            except (BuildError, StoreError, Undecodable) as error:
                wanted.problems.update(dict.fromkeys(wanted.of(names).values(), str(error)))


def _place(root: bytes, name: bytes) -> tuple[bytes, bytes]:
    """The file that a name leads to, and what of the name is left for a place in it; b"" for no file."""
    parts = name.split(b"/")
    if b".." in parts or b"\0" in name:
        return b"", b""
    for cut in range(len(parts) + 1):
        path = os.path.join(root, *parts[:cut])
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if error.errno in PASSING_ERRORS:
                raise failure_from(error, path) from None
            return b"", b""
        if stat.S_ISREG(mode):
            return path, b"/".join(parts[cut:])
        if not stat.S_ISDIR(mode):
            return b"", b""
    return b"", b""


def _file(path: bytes, name: bytes, wanted: Wanted) -> Found:
    try:
        if (nbytes := os.stat(path).st_size) <= MAX_FILE_BYTES:
            yield name, read_regular(Path(os.fsdecode(path)))
        else:
            wanted.problems[name] = size_problem(nbytes)
    except OSError as error:
        if error.errno in PASSING_ERRORS:
            raise failure_from(error, path) from None
        wanted.problems[name] = f"cannot be read: {error.strerror}"


def _in_archive(path: Path, inner: dict[bytes, bytes], wanted: Wanted) -> Found:
    if not wanted.of(inner):
        return
    file = source_file(path, "")
    fd = open_listed(os.fsencode(path), file.size, file.mtime_ns)
    try:
        begin = read_range(fd, os.fsencode(path), 0, 4)
        if begin == b"PK\x03\x04":
            yield from _in_zip(path, inner, wanted)
        elif begin == b"PAR1":
            yield from _in_table(path, fd, inner, wanted)
        elif begin.startswith(MAGIC):
            with closing(GzipStream(fd, str(path), BuildError)) as stream:
                yield from _in_stream(stream, inner, wanted)
        else:
            yield from _in_tar(fd, path, 0, file.size, inner, wanted)
    finally:
        disk.close(fd)


def _in_tar(fd: int, path: Path, first: int, size: int, inner: dict[bytes, bytes], wanted: Wanted) -> Found:
    """Members of the tar that lies in these bytes, and those of class tars in it."""
    tar = Window(fd, str(path), first, size)
    for member in list_tar(tar):
        if not (left := wanted.of(inner)):
            return
        begin = member.name + b"/"
        below = {place[len(begin) :]: name for place, name in left.items() if place.startswith(begin)}
        if below:
            yield from _in_tar(fd, path, first + member.place, member.size, below, wanted)
        elif member.name in left and not member.problem:
            yield left[member.name], _member(tar, member)


def _in_stream(stream: GzipStream, inner: dict[bytes, bytes], wanted: Wanted) -> Found:
    for member in list_tar(stream):
        if not (left := wanted.of(inner)):
            return
        if member.name in left and not member.problem:
            yield left[member.name], _member(stream, member)


def _member(tar: Window, member: Member) -> bytes:
    tar.seek(member.place)
    return tar.read(member.size)


def _in_zip(path: Path, inner: dict[bytes, bytes], wanted: Wanted) -> Found:
    with closing(SourceFiles(path, [source_file(path, "")])) as files:
        for member in list_zip(path):
            name = inner.get(member.name)
            if name in wanted.names and not member.problem:
                try:
                    yield inner[member.name], read_member(files, 0, member.place, member.size)
                except Undecodable as error:
                    wanted.problems[inner[member.name]] = f"{path}: {error}"


def _in_table(path: Path, fd: int, inner: dict[bytes, bytes], wanted: Wanted) -> Found:
    """Names begin with the number of a row; every column that may hold pictures is looked into."""
    numbers = {int(head): name for place, name in inner.items() if (head := place.partition(b"/")[0]).isdigit()}
    table = tables.open_table(str(path), fd)
    columns, first = table_columns.picture_columns(table.schema_arrow), 0
    for group in range(table.num_row_groups):
        rows = range(first, first + table.metadata.row_group(group).num_rows)
        first = rows.stop
        here = [row for row in rows if numbers.get(row) in wanted.names]
        for leaf in columns if here else ():
            pictures = tables.column(tables.read_group(str(path), table, group, [leaf]), leaf)
            for row in here:
                if (picture := pictures[row - rows.start].as_py()) is not None:
                    yield numbers[row], bytes(picture)
    table.close(force=True)
