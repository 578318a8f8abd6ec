"""WebDataset shards: tars, plain or gzipped, of images and files with their labels.

A sample is a run of members whose names are equal up to the first dot.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from decodeonce.errors import BuildError, Stopped
from decodeonce.host import network_file_system, usable_cores
from decodeonce.prep.entry import Entry, name_bytes, name_text
from decodeonce.prep.sources import SOURCES
from decodeonce.prep.sources.files import STAT_THREADS
from decodeonce.prep.sources.formats.labels import LabelledSource
from decodeonce.prep.sources.formats.member import Member
from decodeonce.prep.sources.formats.numbers import NumberColumn, number_columns
from decodeonce.prep.sources.formats.patterns import describe_files, find_files
from decodeonce.prep.sources.formats.tar import list_tar
from decodeonce.prep.sources.holders import (
    GZIP_MAGIC,
    GzipStream,
    Holder,
    SourceFiles,
    file_path,
    open_holder,
    source_file,
)
from decodeonce.prep.sources.safe_open import expecting

SUFFIXES = SOURCES["webdataset"].suffixes
IMAGE_SUFFIXES = (b"jpg", b"jpeg", b"png")
LABELS = (b"cls", b"txt", b"json")  # the first one that a sample has gives its label
LABEL_KEYS = ("label", "cls", "class")
MAX_LABEL_BYTES = 1 << 16
_LONE = re.compile("[\ud800-\udfff]")  # lone surrogates: JSON can contain them, valid text cannot
_PARTS = re.compile(rb"((?:.*/)?[^/.]+)\.([^/]+)", re.DOTALL)


class WebdatasetSource(LabelledSource):
    """The samples of WebDataset shards, in the order of shards and members. Made by `open_webdataset`.

    A sample is named by its shard and its image's name in it. Gzipped shards are unpacked to be listed, and are read
    forward only.

    Args:
        root: The folder that file names are relative to.
        files: Name, size in bytes and mtime in ns of each shard.
        gzipped: Indexes of the shards that are gzip streams; default ().
        classes: Class names in label order; default None: they follow from the labels.
        column: Keys of each sample's json to keep as columns of numbers; default None: none.
    """

    kind = "webdataset"

    def __init__(
        self,
        root: Path,
        *,
        files: Iterable[Any],
        gzipped: Sequence[int] = (),
        classes: Sequence[str] | None = None,
        column: Sequence[str] | None = None,
    ) -> None:
        super().__init__(root, classes, column)
        self.read_unit = "gzip stream" if gzipped else ""
        self._files = SourceFiles(root, files)
        self._gzipped = frozenset(gzipped)
        self._stream: tuple[int, GzipStream] | None = None

    @property
    def top(self) -> Path:
        """The first file: no folder is listed, so a store may be written next to the shards."""
        return Path(os.fsdecode(self._files.path(0)))

    @property
    def found(self) -> str:
        with closing(self._samples(0)) as found:
            label_from = next((sample.label_from for sample in found if sample.label), "")
        labels = f"labels from {label_from}" if label_from else "no labels in the first shard"
        return f"{describe_files([file.name for file in self._files.files], 'shard')}, {labels}"

    def facts(self) -> dict[str, Any]:
        classes = [cls.name for cls in self.classes()]
        column = list(self.column_names)
        return {"files": self._files.facts(), "gzipped": sorted(self._gzipped), "classes": classes, "column": column}

    def stamp(self) -> Any:
        return [self._files.facts(), sorted(self._gzipped), self._requested, *self.column_names]

    def entries(self) -> Iterator[Entry]:
        """Yield every sample in the order of shards and members, after all shards have been indexed."""
        index, shards = SampleIndex(number_columns(self.column_names)), range(len(self._files.files))
        paths = [os.fsdecode(self._files.path(number)) for number in shards]
        with ThreadPoolExecutor(self._threads()) as threads:
            for number, found in enumerate(threads.map(self._list, shards)):
                for sample in found:
                    index.add(number, sample, paths[number])
        self._learn({label: f"{paths[shard]}/{name_text(name)}" for label, (shard, name) in index.labels.items()})
        for number, sample in index:
            label, problem = self._class_of(sample.label)
            name, mtime_ns = self._name(number, sample), self._files.files[number].mtime_ns
            problem, values = sample.problem or problem, tuple(sample.values)
            yield Entry(name, label, sample.size, mtime_ns, problem, number, sample.place, values=values)

    def read(self, entry: Entry) -> bytes:
        if entry.unit not in self._gzipped:
            return self._files.read(entry.unit, entry.place, entry.size)
        if self._stream is None or self._stream[0] != entry.unit:
            if self._stream is not None:
                self._stream[1].close()
            self._stream = (entry.unit, GzipStream(self._files.holder(entry.unit), Stopped))
        stream = self._stream[1]
        data = stream.read_at(entry.place, entry.size)
        if len(data) != entry.size:
            length = f"unpacks to {stream.size} bytes, fewer than when it was listed"
            raise Stopped(f"{stream.path}: {length}; run the same command again")
        return data

    def find(self, names: Collection[bytes]) -> Iterator[Entry]:
        """Yield the entries with these names. Only their shards are listed; a damaged one does not stop the others."""
        for number, here in self._files.by_file(names).items():
            shard = self._files.files[number]
            try:
                for sample in self._samples(number):
                    if (name := self._name(number, sample)) in here:
                        yield Entry(name, 0, sample.size, shard.mtime_ns, sample.problem, number, sample.place)
            except BuildError as error:
                yield from (Entry(name, 0, 0, 0, str(error)) for name in here)

    def holder(self, entry: Entry) -> bytes:
        return self._files.path(entry.unit)

    def _name(self, number: int, sample: Sample) -> bytes:
        return b"%s/%s" % (name_bytes(self._files.files[number].name), sample.name)

    def _threads(self) -> int:
        return STAT_THREADS if network_file_system(self.root) else usable_cores() if self._gzipped else 1

    def _list(self, number: int) -> list[Sample]:
        return list(self._samples(number))

    def _samples(self, number: int) -> Generator[Sample, None, None]:
        """Yield the samples of one shard."""
        with self._files.opened(number) as file:
            tar = GzipStream(file, BuildError) if number in self._gzipped else file
            yield from read_samples(tar, self.column_names)
            tar.read_to_end()


def open_webdataset(
    src: str | Path,
    *,
    column: Annotated[
        list[str] | None, "Keep this field of each json as a column of numbers; repeatable.", "NAME"
    ] = None,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> WebdatasetSource:
    """Read WebDataset shards. SRC is a folder of tars, or a pattern: 'shard-{0000..0147}.tar'.

    A sample is a jpg, jpeg or png with a label in cls, txt or json (key `label`, `cls` or `class`), in this order.

    Args:
        src: A folder of tars, a tar, or a pattern with braces or wildcards. Tars may be gzipped.
        column: Keys of each sample's json to keep as columns of numbers; default None: none.
        classes: Class names in label order; default None: labels that are all whole numbers are the class numbers,
            other labels are sorted by their bytes.
        follow_links: Whether links in a folder may lead out of it; default False.

    Raises:
        BuildError: If a file is missing or cannot be read. Listing raises it if a shard is damaged.

    Example:
        >>> source = open_webdataset("shards/train-{0000..0147}.tar", column=["score"])
    """
    root, names = find_files(os.fspath(src), SUFFIXES, follow_links=follow_links)
    files = [source_file(root, name) for name in names]
    gzipped = [number for number, name in enumerate(names) if _is_gzipped(file_path(root, name))]
    return WebdatasetSource(root, files=files, gzipped=gzipped, classes=classes, column=column)


def _is_gzipped(path: bytes) -> bool:
    with expecting(path, "expected a readable tar"), open_holder(path) as holder:
        return holder.read_at(0, len(GZIP_MAGIC)) == GZIP_MAGIC


class Sample(NamedTuple):
    """A sample in a tar: name, offset and size in bytes of its image, and its label ("" for none).

    `label_from` is the suffix of the file with the label. `values` has a value for each requested column, None for
    a missing one.
    """

    name: bytes
    place: int
    size: int
    label: str
    label_from: str
    problem: str
    values: Sequence[Any] = ()


def read_samples(tar: Holder, columns: Sequence[str] = ()) -> Iterator[Sample]:
    """Group the members of a tar into samples, in their order. A gzip stream is only read forward."""
    parts = ((match[1], match[2].lower(), m) for m in list_tar(tar) if (match := _PARTS.fullmatch(m.name)))
    for _, sample in groupby(parts, itemgetter(0)):
        yield _sample(((suffix, member) for _, suffix, member in sample), tar, columns)


def _sample(parts: Iterator[tuple[bytes, Member]], tar: Holder, columns: Sequence[str]) -> Sample:
    first: Member | None = None
    image: tuple[int, Member] | None = None
    label, rank, duplicate, fields = "", len(LABELS), False, dict[str, Any]()
    for suffix, member in parts:
        first = first or member
        if suffix in IMAGE_SUFFIXES:
            this = (IMAGE_SUFFIXES.index(suffix), member)
            duplicate |= image is not None and image[0] == this[0]
            image = min(image or this, this)
        elif suffix in LABELS and 0 < member.size <= MAX_LABEL_BYTES:
            is_label, is_fields = suffix in LABELS[:rank], suffix == b"json" and columns
            data = tar.read_at(member.place, member.size) if is_label or is_fields else b""
            if is_label:
                rank, label = LABELS.index(suffix), _label(suffix, data)
            if is_fields:
                fields = _fields(data)
    assert first is not None
    main = image[1] if image else first
    problem = "two images in the sample" if duplicate else main.problem
    if image is None:
        problem = "no jpg, jpeg or png in the sample"
    label_from = LABELS[rank].decode() if label else ""
    values = [fields.get(column) for column in columns]
    return Sample(main.name, main.place, main.size, label, label_from, problem, values)


def _label(suffix: bytes, data: bytes) -> str:
    if suffix != b"json":
        return name_text(data).strip()
    facts = _fields(data)
    found = [facts[key] for key in LABEL_KEYS if key in facts]
    label = str(found[0]) if found and isinstance(found[0], (int, str)) and not isinstance(found[0], bool) else ""
    return "" if _LONE.search(label) else label


def _fields(data: bytes) -> dict[str, Any]:
    """Return the object in a sample's json; {} if it is not an object."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


class SampleIndex:
    """Holds the samples of all shards until every label is known. A sample takes 28 bytes, its name and its values."""

    def __init__(self, columns: Sequence[NumberColumn] = ()) -> None:
        self._values = columns
        self.labels: dict[str, tuple[int, bytes]] = {}  # with the first shard and sample of each
        self._numbers: dict[str, int] = {"": -1}
        self._columns: tuple[array[int], ...] = tuple(array(code) for code in "iqqii")
        self._names = bytearray()
        self._problems: dict[int, str] = {}

    def add(self, shard: int, sample: Sample, path: str = "") -> None:
        """Add a sample of a shard. `path` names the shard in messages."""
        number = self._numbers.setdefault(sample.label, len(self.labels))
        if number == len(self.labels):
            self.labels[sample.label] = (shard, sample.name)
        if sample.problem:
            self._problems[len(self._columns[0])] = sample.problem
        elif sample.label:
            where = f"{path}: {name_text(sample.name)}"
            for numbers, found in zip(self._values, sample.values, strict=True):
                if found is None:
                    expected = (
                        f"expected a json object of at most {MAX_LABEL_BYTES} bytes with the key {numbers.name!r}"
                    )
                    raise BuildError(f"{where}: column {numbers.name!r}: found nothing, {expected}")
                numbers.append(numbers.check(found, where))
        facts = (shard, sample.place, sample.size, number, len(sample.name))
        for column, fact in zip(self._columns, facts, strict=True):
            column.append(fact)
        self._names += sample.name

    def __iter__(self) -> Iterator[tuple[int, Sample]]:
        labels, end, index = [*self.labels, ""], 0, 0
        for at, (shard, place, size, number, length) in enumerate(zip(*self._columns, strict=True)):
            end += length
            name = bytes(self._names[end - length : end])
            problem = self._problems.get(at, "")
            has_values = number >= 0 and not problem
            values = [numbers[index] for numbers in self._values] if has_values else []
            index += has_values
            yield shard, Sample(name, place, size, labels[number], "", problem, values)
