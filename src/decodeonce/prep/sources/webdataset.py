"""WebDataset shards: tars, plain or gzipped, of images and files with their labels."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

from decodeonce.errors import BuildError, Stopped
from decodeonce.host import network_file_system, usable_cores
from decodeonce.prep.entry import Entry, name_bytes, name_text
from decodeonce.prep.sources.base import open_listed
from decodeonce.prep.sources.files import SourceFiles, source_file
from decodeonce.prep.sources.formats.gzipped import MAGIC, GzipStream
from decodeonce.prep.sources.formats.labels import LabelledSource
from decodeonce.prep.sources.formats.numbers import number_columns
from decodeonce.prep.sources.formats.patterns import describe_files, find_files
from decodeonce.prep.sources.formats.samples import Sample, SampleIndex, read_samples
from decodeonce.prep.sources.formats.tar import Window, list_tar
from decodeonce.prep.sources.parallel_stat import STAT_THREADS
from decodeonce.prep.sources.safe_open import expecting, open_regular
from decodeonce.store import disk

SUFFIXES = (".tar", ".tar.gz", ".tgz")


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
            shard = self._files.files[number]
            name = b"%s/%s" % (name_bytes(shard.name), sample.name)
            problem = sample.problem or problem
            values = tuple(sample.values)
            yield Entry(name, label, sample.size, shard.mtime_ns, problem, number, sample.place, values=values)

    def read(self, entry: Entry) -> bytes:
        if entry.unit not in self._gzipped:
            return self._files.read(entry.unit, entry.place, entry.size)
        if self._stream is None or self._stream[0] != entry.unit:
            if self._stream is not None:
                self._stream[1].close()
            path = os.fsdecode(self._files.path(entry.unit))
            self._stream = (entry.unit, GzipStream(self._files.fd(entry.unit), path, Stopped))
        stream = self._stream[1]
        data = stream.read_at(entry.place, entry.size)
        if len(data) != entry.size:
            length = f"unpacks to {stream.length} bytes, fewer than when it was listed"
            raise Stopped(f"{stream.path}: {length}; run the same command again")
        return data

    def holder(self, entry: Entry) -> bytes:
        return self._files.path(entry.unit)

    def _threads(self) -> int:
        return STAT_THREADS if network_file_system(self.root) else usable_cores() if self._gzipped else 1

    def _list(self, number: int) -> list[Sample]:
        return list(self._samples(number))

    def _samples(self, number: int) -> Generator[Sample, None, None]:
        """Yield the samples of one shard. It gets its own descriptor, because many threads do this at once."""
        _, size, mtime_ns = self._files.files[number]
        path = self._files.path(number)
        text = os.fsdecode(path)
        fd = open_listed(path, size, mtime_ns)
        try:
            gzipped = number in self._gzipped
            with closing(GzipStream(fd, text, BuildError) if gzipped else Window(fd, text, 0, size)) as tar:
                yield from read_samples(
                    list_tar(tar), lambda member: tar.read_at(member.place, member.size), self.column_names
                )
                tar.read_to_end()
        finally:
            disk.close(fd)


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
    gzipped = [number for number, name in enumerate(names) if _begins(root, name) == MAGIC]
    return WebdatasetSource(root, files=files, gzipped=gzipped, classes=classes, column=column)


def _begins(root: Path, name: str) -> bytes:
    path = os.path.join(os.fsencode(root), name_bytes(name))
    with expecting(path, "expected a readable tar"), open(open_regular(path), "rb") as file:
        return file.read(len(MAGIC))
