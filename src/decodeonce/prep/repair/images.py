"""Find encoded images in SRC by their names in samples.tsv and rejects.tsv.

A name leads to its image without a listing of the source: it is the path of a file, or the path of an archive followed
by a member. Archives are read with the functions of the sources. No flag of the build is needed, and a damaged archive
does not stop the search in the others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Undecodable, name_text
from decodeonce.prep.sources.base import WITH_BOXES
from decodeonce.prep.sources.files import file_entry, mode_of, read_file
from decodeonce.prep.sources.formats import tables
from decodeonce.prep.sources.formats.patterns import find_files
from decodeonce.prep.sources.formats.tar import list_tar
from decodeonce.prep.sources.formats.zipped import LOCAL, list_zip, read_member
from decodeonce.prep.sources.holders import GZIP_MAGIC, GzipStream, Holder, SourceFiles, source_file
from decodeonce.prep.sources.webdataset import SUFFIXES

PATTERN_SUFFIXES = {"webdataset": SUFFIXES, "parquet": (".parquet",)}
Members = Iterator[tuple[bytes, Callable[[], bytes]]]  # the name of each archive member, and a function that reads it


def roots_of(kind: str, source: str) -> list[Path]:
    """Return the paths that names of a store may be relative to, given the kind of its source and its SRC.

    Raises BuildError if SRC does not exist.
    """
    kind = kind.removesuffix(WITH_BOXES)
    if kind in PATTERN_SUFFIXES:
        return [find_files(source, PATTERN_SUFFIXES[kind], deep=kind == "parquet")[0]]
    path = Path(source)
    if not path.exists():
        raise BuildError(f"{source}: no such file or folder; expected the source that the store was built from")
    if path.is_dir():
        return [path]
    return [path.absolute().parent] if kind == "list" else [path, path.absolute().parent]


class ImageSearch:
    """A search for images with these names. Remove a name from `names` when its image was found.

    `problems` maps the names of images that exist but cannot be read to the reason.
    """

    def __init__(self, roots: Iterable[Path], names: Iterable[bytes]) -> None:
        self._roots = roots
        self.names = set(names)
        self.problems: dict[bytes, str] = {}

    def find(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (name, bytes) of everything that has a wanted name.

        Raises Stopped for a temporary error, and BuildError for a file without read permission.
        """
        for root in self._roots:
            archives: dict[bytes, dict[bytes, bytes]] = {}
            for name in sorted(self.names):
                path, place = _split(os.fsencode(root), name)
                if place:
                    archives.setdefault(path, {})[place] = name
                elif path:
                    yield from self._read_file(root, name)
            for path, places in archives.items():
                try:
                    yield from self._read_archive(Path(os.fsdecode(path)), places)
                except BuildError as error:
                    self.problems.update(dict.fromkeys(self.names.intersection(places.values()), str(error)))

    def _read_file(self, root: Path, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        entry = file_entry(root, name, 0)
        if entry.problem:
            self.problems[name] = entry.problem
        else:
            yield name, read_file(root, entry)

    def _read_archive(self, path: Path, places: dict[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Read an archive up to its last wanted member."""
        left = set(places)
        with closing(SourceFiles(path, [source_file(path, "")])) as files:
            for place, read in _members(path, files, left):
                name = places[place]
                try:
                    yield name, read()
                except Undecodable as error:
                    self.problems[name] = f"{path}: {error}"
                if name not in self.names:
                    left.discard(place)
                if not left:
                    return


def _split(root: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Split a name into the path of an existing file and a member of it; both are empty if no file exists."""
    parts = name.split(b"/")
    if b".." in parts or b"\0" in name:  # a store from an untrusted writer may contain any names
        return b"", b""
    for cut in range(len(parts) + 1):
        path = os.path.join(root, *parts[:cut])
        mode = mode_of(path)
        if stat.S_ISREG(mode):
            return path, b"/".join(parts[cut:])
        if not stat.S_ISDIR(mode):
            break
    return b"", b""


def _members(path: Path, files: SourceFiles, wanted: Collection[bytes]) -> Members:
    """Yield the wanted members of an archive in stored order. Its first bytes identify the format."""
    holder = files.holder(0)
    begin = holder.read_at(0, 4)
    if begin == LOCAL:
        for member in list_zip(holder):
            if member.name in wanted and not member.problem:
                yield member.name, partial(read_member, holder, member.place, member.size)
    elif begin == b"PAR1":
        yield from _table_rows(holder, wanted)
    else:
        yield from _tar_members(GzipStream(holder, BuildError) if begin.startswith(GZIP_MAGIC) else holder, wanted)


def _tar_members(tar: Holder, wanted: Collection[bytes], above: bytes = b"") -> Members:
    """Yield the wanted members of a tar, and of the class tars in it."""
    for member in list_tar(tar):
        place = above + member.name
        if place in wanted and not member.problem:
            yield place, partial(tar.read_at, member.place, member.size)
        elif member.name.endswith(b".tar") and any(other.startswith(place + b"/") for other in wanted):
            inner = tar.part(member.place, member.size, name_text(member.name))
            yield from _tar_members(inner, wanted, place + b"/")


def _table_rows(holder: Holder, wanted: Collection[bytes]) -> Members:
    """Yield the wanted rows of a Parquet file from each column that may hold images. Names begin with a row number."""
    places = {int(number): place for place in wanted if (number := place.partition(b"/")[0]).isdigit()}
    table, first = tables.Table(holder), 0
    columns = tables.image_columns(table.file.schema_arrow)
    for group in range(table.file.num_row_groups):
        rows = range(first, first + table.file.metadata.row_group(group).num_rows)
        first = rows.stop
        here = sorted(places.keys() & set(rows))
        for leaf in columns if here else ():
            images = tables.column(table.read(group, [leaf]), leaf)
            for row in here:
                if places[row] in wanted:
                    yield places[row], partial(tables.image_at, images, row - rows.start)
