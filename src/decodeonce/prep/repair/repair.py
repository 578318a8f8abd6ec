"""A damaged store made whole again: only what is bad is touched, and it gets the very bytes that were written.

It may be killed at any moment and called again: what is bad is looked for anew. Rows are written in place, small files
replaced whole. A shard that was short or missing has no head before all its rows are right, so that nobody takes its
holes for pictures.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError, StoreError
from decodeonce.formatting import counted
from decodeonce.host import allow_open_files, usable_cores
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.repair import small_files
from decodeonce.prep.repair.damaged_tables import FoundLines
from decodeonce.prep.repair.reasons import Reason, row_sentences
from decodeonce.prep.repair.small_files import COPY
from decodeonce.store import Report, Sample, Shard, Store, StorePaths, verify_store
from decodeonce.store.disk import LINK
from decodeonce.store.files import LOCK, ShardFile, empty_folder, locked
from decodeonce.store.hashing import row_checksum
from decodeonce.store.manifest import Manifest, read_manifest
from decodeonce.store.part import read_part
from decodeonce.store.select import MappedSamples
from decodeonce.store.verify import read_checksums, row_checksums
from decodeonce.store.writer import write_head

if TYPE_CHECKING:
    from decodeonce.prep.entry import Row
    from decodeonce.prep.repair.rows import Origin, Right

REPLACE_LINK = "put the file itself there and run this again"
NOTHING_GIVEN = Reason("give what the store was built from, or a store that has it, with --source")


@dataclass(frozen=True)
class Repair:
    """What `repair_store` did to a store of so many `rows`; `unmended` has a sentence for each thing still bad."""

    rows: int
    mended_rows: int = 0
    mended_files: list[str] = field(default_factory=list)
    unmended: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the store is whole now."""
        return not self.unmended


def repair_store(
    path: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> Repair:
    """Verify the store, or staged part, at `path`, make again what is bad, and verify once more if anything was.

    `source` is what it was built from, or a finished store that has its rows; without one only that is mended which the
    rest of the store tells. Raises BuildError and StoreError where `source` is of no use, as one in which no picture of
    a bad row is, Stopped where its trouble may pass, OSError. `progress` is called with numbers of rows checked.
    """
    paths, threads = StorePaths(Path(path)), usable_cores()
    if not paths.root.is_dir():
        read_manifest(paths.manifest)  # which says what is there instead
    with locked(paths.repair, waits_for="another `prep repair`"):
        _remove_scratch(paths)  # of one that was killed
        found = verify_store(paths.root, threads=threads, progress=progress)
        if found.ok or not found.rows:
            return Repair(found.rows, unmended=found.problems)
        manifest = read_manifest(paths.manifest)
        origin = None if source is None else _open_origin(paths.root, manifest, os.fspath(source))
        mending = _Mending(Store(paths, manifest, read_part(paths.part, manifest)), found, origin, source)
        try:
            mending.run()
        finally:
            _remove_scratch(paths)
        return mending.outcome(verify_store(paths.root, threads=threads, progress=progress))


def _remove_scratch(paths: StorePaths) -> None:
    with suppress(FileNotFoundError):  # nothing can be written here
        empty_folder(paths.repair, keep=LOCK)


def _open_origin(root: Path, manifest: Manifest, source: str) -> Origin:
    if os.path.isdir(source) and os.path.samefile(root, source):
        raise BuildError(f"{source}: the store itself, expected what it was built from, or another store")
    decoder_versions("npy")  # where there is none, it says so
    from decodeonce.prep.repair.rows import open_origin

    return open_origin(manifest, source)


class _Mending:
    """What one repair knows: what is bad still, and why."""

    def __init__(
        self, store: Store, found: Report, origin: Origin | None, source: str | os.PathLike[str] | None
    ) -> None:
        self._store, self._paths, self._manifest = store, store.paths, store.manifest
        self._origin, self._source = origin, source
        self._found, self._bad_files = found, set(found.bad_files)
        self._bad, self._unknown = set(_numbers(found.bad_rows)), set(_numbers(found.unknown_rows))
        self._expected: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._file_reasons: dict[str, str] = {}
        self._row_reasons: dict[int, Reason] = {}
        self._row_files: dict[int, str] = {}  # of rows that are bad for the same reason as their file
        self._written = 0
        for name in self._bad_files & set(self._manifest.files):
            if told := _no_file(self._paths.root / name):
                self._file_reasons[name] = told
        self._in_the_way = set(self._file_reasons)

    def run(self) -> None:
        """Mend what can be mended: first the small files, by which rows are found and known to be right."""
        self._copy_small_files()
        self._mend_small(self._paths.labels, self._write_labels)
        self._mend_small(self._paths.samples, self._write_samples)
        self._mend_checksums()
        self._bad |= self._unknown
        if self._origin is not None:
            self._mend_small(self._paths.samples, self._write_made_samples)
        self._mend_shards()
        self._mend_small(self._paths.virtual, self._write_virtual)

    def outcome(self, left: Report) -> Repair:
        """What was done, given what a verification found after it."""
        problems = dict(zip(left.bad_files, left.problems, strict=True))
        shards = {shard.file for shard in self._manifest.shards}
        for name, problem in problems.items():
            told = problem if name in shards else f"{self._paths.root / name}: damaged; {COPY}"
            self._file_reasons.setdefault(name, told)
        rows = sorted([*_numbers(left.bad_rows), *_numbers(left.unknown_rows)])
        waiting = Counter(self._row_files[row] for row in rows if self._row_files.get(row) in problems)
        for name, number in waiting.items():
            self._file_reasons[name] += f" ({counted(number, 'row')})"
        rows = [row for row in rows if self._row_files.get(row) not in waiting]
        return Repair(
            rows=left.rows,
            mended_rows=self._written,
            mended_files=sorted(set(self._found.bad_files) - set(problems)),
            unmended=[
                *(self._file_reasons[name] for name in sorted(problems)),
                *row_sentences(self._paths.root, rows, self._row_reasons),
            ],
        )

    # Small files.

    def _copy_small_files(self) -> None:
        """Take those that another store has, byte for byte: a copy, or one that was staged or converted from it."""
        if self._source is None or not os.path.isfile(os.path.join(self._source, self._paths.manifest.name)):
            return
        for name in sorted(self._bad_files & set(self._manifest.files) - self._in_the_way):
            facts = self._manifest.files[name]
            if small_files.copy_small(
                Path(self._source) / name, self._paths.root / name, facts, scratch=self._paths.repair
            ):
                self._bad_files.discard(name)

    def _mend_small(self, path: Path, write: Callable[[], None]) -> None:
        if path.name not in self._bad_files or path.name in self._in_the_way:
            return
        try:
            write()
        except StoreError as error:
            lines_too = path == self._paths.labels and self._paths.samples.name in self._bad_files
            told = f"{path}: is made from samples.tsv, which is damaged, too; {COPY}"
            self._file_reasons[path.name] = told if lines_too else str(error)
        else:
            self._bad_files.discard(path.name)

    @cached_property
    def _lines(self) -> FoundLines:
        most = 2 * self._manifest.files[self._paths.samples.name].bytes  # of what was written
        return FoundLines(self._paths.samples, len(self._store), self._manifest.classes, most=most)

    @cached_property
    def _samples(self) -> MappedSamples:
        return MappedSamples(self._paths.samples, len(self._store))

    def _labels(self) -> NDArray[np.int64]:
        if self._paths.labels.name not in self._bad_files:
            return self._store.labels
        if self._paths.samples.name in self._bad_files:
            return self._lines.labels()
        return np.fromiter((sample.label for sample in self._store.samples), np.int64, len(self._store))

    def _sample(self, row: int) -> Sample | None:
        """What samples.tsv says, or said, of a row."""
        if self._paths.samples.name not in self._bad_files:
            return self._samples.at(row)
        return self._lines.sample(row, int(self._known_labels[row]))

    @cached_property
    def _known_labels(self) -> NDArray[np.int64]:
        return self._labels()

    def _write_labels(self) -> None:
        small_files.write_labels(self._store, self._labels(), scratch=self._paths.repair)

    def _write_samples(self) -> None:
        self._write_lines({})

    def _write_made_samples(self) -> None:
        """With the lines that are broken made again from their pictures."""
        wanted = [sample for row in self._lines.missing() if (sample := self._sample(row)) is not None]
        made = {
            sample.row: Sample(
                sample.row, sample.label, sample.class_name, sample.source, row.width, row.height, row.box, row.digest
            )
            for sample, row in self._made(wanted, self._is_right)
        }
        self._write_lines(made)

    def _write_lines(self, made: dict[int, Sample]) -> None:
        chunks = self._lines.encoded(self._known_labels, made)
        facts = self._manifest.files[self._paths.samples.name]
        small_files.write_checked(self._paths.samples, facts, chunks, scratch=self._paths.repair)

    def _write_virtual(self) -> None:
        if self._paths.labels.name in self._bad_files:
            raise StoreError(f"{self._paths.virtual}: is made from labels.npy, which is damaged, too; {COPY}")
        small_files.write_virtual_again(self._store, scratch=self._paths.repair)

    def _mend_checksums(self) -> None:
        """checksums.npy from the rows as they are; if that is not it, from those that can be made again."""
        if self._paths.checksums.name not in self._bad_files:
            self._expected = self._store.checksums
            self._unknown = {row for row in self._unknown if self._stored_checksum(row) != int(self._expected[row])}
            return
        self._expected = read_checksums(self._store)
        if self._paths.checksums.name in self._in_the_way:
            self._row_files.update(dict.fromkeys(self._unknown, self._paths.checksums.name))
            self._unknown = set()
            return
        kept = self._expected.copy()
        for row in self._unknown:
            kept[row] = self._stored_checksum(row)
        made = kept.copy()
        if self._wrote_checksums(kept):
            self._unknown = set()
        elif self._origin is not None:
            wanted = [s for row in sorted(self._unknown | self._bad) if (s := self._sample(row)) is not None]
            for sample, new in self._made(wanted, lambda number, pixels: True):
                made[sample.row] = row_checksum(new.pixels)
            if self._wrote_checksums(made):
                self._bad |= {row for row in self._unknown if made[row] != kept[row]}
                self._unknown = set()

    def _wrote_checksums(self, checksums: NDArray[np.uint64]) -> bool:
        def write() -> None:
            small_files.write_checksums(self._store, checksums, scratch=self._paths.repair)

        self._mend_small(self._paths.checksums, write)
        if self._paths.checksums.name in self._bad_files:
            return False
        self._expected = checksums
        return True

    def _stored_checksum(self, row: int) -> int:
        shard = self._shard_of(row)
        return row_checksums(self._store, shard, row - shard.first_row, row - shard.first_row + 1)[0] or 0

    # Shards.

    def _shard_of(self, row: int) -> Shard:
        return self._manifest.shard_of(row)

    def _mend_shards(self) -> None:
        bad = [shard for shard in self._manifest.shards if shard.file in self._bad_files]
        heads: dict[str, bytes] = {}
        for shard in bad:
            try:
                self._find_head(shard, heads)
            except StoreError as error:
                self._file_reasons[shard.file] = str(error)
        made = self._made_rows()
        for shard in bad:
            if shard.file not in self._file_reasons:
                held = shard.held_rows(self._store.rows)
                small_files.restore_size(self._paths.root / shard.file, self._manifest, shard, held)
        self._write_rows(made)
        for shard in bad:
            if shard.file in heads and shard.file not in self._file_reasons:
                path = self._paths.root / shard.file
                if left := self._bad_in(shard):
                    what = f"gets its head when all its rows are right ({counted(left, 'row')} to go)"
                    self._file_reasons[shard.file] = f"{path}: {what}; see to those, and run this again"
                else:
                    write_head(path, heads[shard.file])

    def _find_head(self, shard: Shard, heads: dict[str, bytes]) -> None:
        """Find the head that a shard is to get, if any; StoreError where the shard has to stay as it is."""
        path = self._paths.root / shard.file
        if told := _no_file(path, shard=True):
            raise StoreError(told)
        short = not path.exists() or path.stat().st_size < shard.bytes
        if short or not self._has_head(path, shard):
            heads[shard.file] = small_files.make_head(path, self._manifest, shard, scratch=self._paths.repair)
            if self._origin is None and (short or self._bad_in(shard)):
                what = "not all there" if short else "gets its head when all its rows are right"
                raise StoreError(f"{path}: {what}; give what the store was built from with --source")

    def _bad_in(self, shard: Shard) -> int:
        return sum(shard.first_row <= row < shard.first_row + shard.rows for row in self._bad)

    def _has_head(self, path: Path, shard: Shard) -> bool:
        try:
            return small_files.head_is_right(path, shard)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False

    def _made_rows(self) -> Iterator[tuple[Sample, Row]]:
        """What can be made of the bad rows, looked for until there is one; BuildError where the source has none."""
        wanted: list[Sample] = []
        for row in sorted(self._bad):
            if (name := self._shard_of(row).file) in self._file_reasons:
                self._row_files[row] = name
            elif (self._paths.root / name).is_symlink():
                self._row_reasons[row] = Reason(f"{name} is {LINK}; {REPLACE_LINK}")
            elif self._origin is None:
                self._row_reasons[row] = NOTHING_GIVEN
            elif (sample := self._sample(row)) is None:
                self._row_reasons[row] = Reason(f"its line in samples.tsv is lost; {COPY}")
            else:
                wanted.append(sample)
        made = self._made(wanted, self._is_right)
        first = list(islice(made, 1))
        # Names in a samples.tsv that is damaged may be wrong themselves.
        names_are_right = self._paths.samples.name not in self._bad_files
        if self._origin is not None and wanted and not first and names_are_right:
            self._check_any(self._origin, wanted)
        return chain(first, made)

    def _check_any(self, origin: Origin, wanted: list[Sample]) -> None:
        if all(self._row_reasons[sample.row].absent for sample in wanted):
            what = f"expected what {counted(len(wanted), 'bad row')} came from, as {wanted[0].source}"
            raise BuildError(f"{self._source}: {origin.what()}, {what}; {origin.advice()}")

    def _write_rows(self, made: Iterator[tuple[Sample, Row]]) -> None:
        allow_open_files(2 * len(self._manifest.shards))
        with ExitStack() as opened:
            files: dict[str, ShardFile] = {}
            for sample, row in made:
                shard = self._shard_of(sample.row)
                if shard.file not in files:
                    files[shard.file] = opened.enter_context(ShardFile(self._paths.root / shard.file))
                offset = shard.data_offset + (sample.row - shard.first_row) * self._manifest.row_bytes
                files[shard.file].write(memoryview(row.pixels), offset)
                self._bad.discard(sample.row)
                self._written += 1
            for file in files.values():
                file.sync()

    def _is_right(self, row: int, pixels: bytes) -> bool:
        return row_checksum(pixels) == int(self._expected[row])

    def _made(self, wanted: list[Sample], right: Right) -> Iterator[tuple[Sample, Row]]:
        """The rows that can be made again; of others the reason is kept."""
        assert self._origin is not None or not wanted
        for sample, made in self._origin.rows(wanted, right) if self._origin is not None else ():
            if isinstance(made, Reason):
                self._row_reasons[sample.row] = made
            else:
                yield sample, made


def _no_file(path: Path, *, shard: bool = False) -> str:
    """The error for anything but a file in a file's place; a link may stand for a small file, which is replaced."""
    try:
        mode = path.lstat().st_mode if shard else path.stat().st_mode
    except FileNotFoundError:
        return ""
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISLNK(mode):
        return f"{path}: {LINK}; {REPLACE_LINK}"
    return f"{path}: a folder, pipe or device, expected a file; remove it and run this again"


def _numbers(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    return (row for first, last in ranges for row in range(first, last + 1))
