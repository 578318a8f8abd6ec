"""Repair a damaged store: rewrite only what is damaged, with the bytes that the build wrote.

A repair can be killed at any moment and called again; it then looks for damage again. Rows are written in place, small
files are replaced as a whole. A shard that was short or missing gets its header only after all its rows are right.
Until then it cannot be opened, so no reader takes its holes for images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from decodeonce.errors import StoreError
from decodeonce.formatting import counted
from decodeonce.host import allow_open_files, usable_cores
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.repair.rows import COPY, Reason, open_rows, row_sentences, versions_to_install
from decodeonce.store import Report, Sample, Shard, Store, StorePaths, disk, verify_store
from decodeonce.store.checks import check_size, repair_advice
from decodeonce.store.columns import RESERVED
from decodeonce.store.files import ShardFile, empty_folder, sync_folder, write_at, write_atomic, writing
from decodeonce.store.format import CONTAINERS, npy_header
from decodeonce.store.hashing import file_chunks, hexdigest, row_checksum
from decodeonce.store.manifest import SmallFile, read_manifest, read_part
from decodeonce.store.sharing import LOCK, locked
from decodeonce.store.table import Samples
from decodeonce.store.verify import read_checksums, stored_checksums
from decodeonce.store.writer import copy_small, virtual_bytes, write_head

NO_CHECKSUM = Reason("cannot be checked, because checksums.npy is damaged")
BAD_AGAIN = Reason("damaged again after the repair; check the disk, then run the command again")


@dataclass(frozen=True)
class Repair:
    """The result of `repair_store`.

    Attributes:
        rows: Number of rows of the store, or of the staged part.
        repaired_rows: Number of rows that were rewritten.
        repaired_files: Names of the files that were repaired or replaced.
        unrepaired: One sentence for each problem that is left.

    Example:
        >>> repair = repair_store("train.store")  # of an undamaged store
        >>> repair.ok, repair.rows, repair.repaired_rows
        (True, 64, 0)
    """

    rows: int
    repaired_rows: int = 0
    repaired_files: list[str] = field(default_factory=list)
    unrepaired: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the store is undamaged now."""
        return not self.unrepaired


def repair_store(
    path: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    paired: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Repair:
    """Verify a store or staged part, repair what is damaged, and verify it again.

    Repaired bytes equal those that the build wrote. An undamaged store is verified only once, and nothing is written.
    If the call is interrupted, repeat it.

    Args:
        path: Path of the store or staged part.
        source: What the store was built from, or a finished store that has its rows. None repairs only what the rest
            of the store determines, such as labels, checksums and headers of shards.
        paired: Folders of masks and second images, such as {"mask": "masks"}, which no store records. Default: none.
        progress: Function that is called with the number of rows checked since its last call.

    Returns:
        What was repaired, and what could not be.

    Raises:
        BuildError: If no row of the store can come from `source`.
        StoreError: If `path` is not a store, or `source` is a damaged store.
        Stopped: If the source cannot be read because of a temporary error.
        OSError: If the disk fails.

    Example:
        >>> pixels = np.load("train.store/images-00000.npy", mmap_mode="r+")
        >>> pixels[3] ^= 1  # this damages a row
        >>> pixels.flush()
        >>> repair_store("train.store", "imagenet")
        Repair(rows=64, repaired_rows=1, repaired_files=[], unrepaired=[])
    """
    paths, threads = StorePaths(path), usable_cores()
    if not paths.root.is_dir():
        read_manifest(paths.manifest)  # raises a StoreError that says what is wrong with the path
    with locked(paths.repair, waits_for="another `prep repair` or `prep column`"):
        _remove_scratch(paths)  # a killed run may have left some
        found = verify_store(paths.root, threads=threads, progress=progress)
        if found.ok or not found.rows:
            return Repair(found.rows, unrepaired=found.problems)
        manifest = read_manifest(paths.manifest)
        store = Store(paths, manifest, read_part(paths.part, manifest))
        repair = _StoreRepair(store, found, None if source is None else os.fspath(source), paired or {})
        try:
            repair.run()
        finally:
            _remove_scratch(paths)
        return repair.outcome(verify_store(paths.root, threads=threads, progress=progress))


def _remove_scratch(paths: StorePaths) -> None:
    with suppress(FileNotFoundError):  # the folder does not exist in a read-only store
        empty_folder(paths.repair, keep=LOCK)


class _StoreRepair:
    """A repair in progress: the files and rows that are still damaged, and why."""

    def __init__(self, store: Store, found: Report, source: str | None, paired: Mapping[str, str]) -> None:
        self._store, self._paths, self._manifest, self._found = store, store.paths, store.manifest, found
        self._source, self._new_rows = source, None
        if source is not None:
            decoder_versions("npy")  # raises BuildError if no decoder is installed
            self._new_rows = open_rows(self._manifest, source, paired)
        self._bad_files, self._bad_rows = set(found.bad_files), {*_numbers(found.bad_rows, found.unknown_rows)}
        self._checksums = read_checksums(store)
        self._heads: dict[str, bytes] = {}  # headers of damaged shards, by file
        self._file_reasons: dict[str, str] = {}
        self._row_reasons: dict[int, Reason] = {}
        self._repaired_rows = 0

    def run(self) -> None:
        """Repair what can be repaired: small files first, because they say where rows come from and which are right.

        store.h5 is last, because readers take the holes of a shard in it for images.
        """
        self._copy_small_files()
        self._make_heads()
        self._repair_file(self._paths.labels, self._possible_labels())
        self._repair_checksums()
        self._repair_rows()
        self._repair_shards()
        self._repair_file(self._paths.virtual, self._possible_virtual())

    def outcome(self, left: Report) -> Repair:
        """Return the result, given the report of a verification after the repair."""
        for name, problem in zip(left.bad_files, left.problems, strict=True):
            damaged = f"{self._paths.root / name}: damaged; {self._what_restores(name)}"
            self._file_reasons.setdefault(name, damaged if name in self._manifest.files else problem)
        reasons = {**self._row_reasons, **dict.fromkeys(_numbers(left.unknown_rows), NO_CHECKSUM)}
        rows = {row: reasons.get(row, BAD_AGAIN) for row in sorted(_numbers(left.bad_rows, left.unknown_rows))}
        return Repair(
            rows=left.rows,
            repaired_rows=self._repaired_rows,
            repaired_files=sorted(set(self._found.bad_files) - set(left.bad_files)),
            unrepaired=[
                *(self._file_reasons[name] for name in left.bad_files),
                *(f"{self._paths.root}: {sentence}" for sentence in row_sentences(rows)),
            ],
        )

    def _what_restores(self, file: str) -> str:
        own = {column.file for column in self._manifest.columns if column.name not in RESERVED}
        return repair_advice(self._paths.root / file) if file in own else COPY

    # Small files.

    def _copy_small_files(self) -> None:
        """Copy files that the source has with the same bytes; it may be a copy, or a staged or converted store."""
        if self._source is None or not os.path.isfile(os.path.join(self._source, self._paths.manifest.name)):
            return
        for name in sorted(self._bad_files & set(self._manifest.files)):
            with suppress(StoreError):
                file = self._manifest.files[name]
                source = Path(self._source) / name
                check_size(source, file.bytes)
                copy_small(source, file_chunks(source), self._paths.root / name, file, scratch=self._paths.repair)
                self._bad_files.discard(name)

    def _repair_file(self, path: Path, possible: Iterable[bytes]) -> None:
        """Replace a damaged file by the first of the possible contents that has the right size and digest."""
        for data in possible if path.name in self._bad_files else ():
            if SmallFile(len(data), hexdigest(data)) == self._manifest.files[path.name]:
                write_atomic(path, [data], scratch=self._paths.repair)
                self._bad_files.discard(path.name)
                return

    def _possible_labels(self) -> Iterator[bytes]:
        if self._paths.samples.name not in self._bad_files:
            labels = np.fromiter((sample.label for sample in self._store.samples), "<i8", len(self._store))
            yield npy_header(labels.shape, "<i8") + labels.tobytes()

    def _possible_virtual(self) -> Iterator[bytes]:
        if self._paths.labels.name not in self._bad_files:
            yield virtual_bytes(self._manifest, labels=self._store.labels)

    def _repair_checksums(self) -> None:
        """Rebuild checksums.npy from what is left of it and, for rows that differ, from stored or new rows."""
        unknown = _numbers(self._found.unknown_rows)
        stored = {row: stored_checksums(self._store, range(row, row + 1))[0] or 0 for row in unknown}
        self._repair_file(self._paths.checksums, self._possible_checksums(stored))
        if self._paths.checksums.name not in self._bad_files:
            self._checksums = read_checksums(self._store)
            self._bad_rows -= {row for row, checksum in stored.items() if checksum == int(self._checksums[row])}

    def _possible_checksums(self, stored: dict[int, int]) -> Iterator[bytes]:
        checksums = self._checksums.astype("<u8")
        header = npy_header(checksums.shape, "<u8")
        checksums[list(stored)] = list(stored.values())
        yield header + checksums.tobytes()
        for sample, pixels in self._made_rows(lambda row, pixels: True):
            checksums[sample.row] = row_checksum(pixels)
        yield header + checksums.tobytes()

    # Rows and shards.

    def _make_heads(self) -> None:
        """Rebuild the header, the bytes before the rows, of each damaged shard."""
        for shard in self._bad_shards():
            container, shape = CONTAINERS[self._manifest.container], (shard.rows, *self._manifest.row_shape)
            head = container.head(shape, size=shard.data_offset, scratch=self._paths.repair)
            if hexdigest(head) == shard.meta_xxh3:
                self._heads[shard.file] = head
            else:
                advice = versions_to_install(self._manifest) or "restore the file from a copy of the store"
                reason = f"{self._paths.root / shard.file}: its header cannot be rebuilt here; {advice}"
                self._file_reasons[shard.file] = reason

    def _repair_rows(self) -> None:
        """Write each damaged row that the source has. The first row of a shard restores the file's size."""
        allow_open_files(2 * len(self._manifest.shards))
        with ExitStack() as opened:
            files: dict[str, ShardFile] = {}
            for sample, pixels in self._made_rows(self._is_right):
                shard = self._manifest.shard_of(sample.row)
                if shard.file not in files:
                    if shard.file in self._heads:
                        _restore_size(self._paths.root / shard.file, shard)
                    files[shard.file] = opened.enter_context(ShardFile(self._paths.root / shard.file))
                files[shard.file].write(memoryview(pixels), shard.offset(sample.row))
                self._bad_rows.discard(sample.row)
                self._repaired_rows += 1
            for file in files.values():
                file.sync()

    def _made_rows(self, is_right: Callable[[int, bytes], bool]) -> Iterator[tuple[Sample, bytes]]:
        """Yield the damaged rows that the source has, and record why the others cannot be repaired."""
        wanted = list(self._wanted_samples())
        for sample, pixels in self._new_rows.rows(wanted, is_right) if self._new_rows else ():
            if isinstance(pixels, bytes):
                yield sample, pixels
            else:
                self._row_reasons[sample.row] = pixels

    def _wanted_samples(self) -> Iterator[Sample]:
        samples = Samples(self._paths.samples, len(self._store))
        no_source = Reason(f"no --from was given; {repair_advice(self._paths.manifest)}")
        for row in sorted(self._bad_rows):
            file = self._manifest.shard_of(row).file
            if self._new_rows is None:
                self._row_reasons[row] = no_source
            elif file in self._file_reasons:
                self._row_reasons[row] = Reason(f"{file} must be repaired first")
            else:
                try:
                    yield samples[row]
                except (StoreError, FileNotFoundError, IndexError):
                    self._row_reasons[row] = Reason(f"its line in samples.tsv is damaged; {COPY}")

    def _is_right(self, row: int, pixels: bytes) -> bool:
        return row_checksum(pixels) == int(self._checksums[row])

    def _repair_shards(self) -> None:
        """Write the size and header of shards whose rows are all right."""
        for shard in self._bad_shards():
            path, rows = self._paths.root / shard.file, range(shard.first_row, shard.first_row + shard.rows)
            left = sum(row in rows for row in self._bad_rows)
            if left:
                reason = f"{path}: incomplete until all its rows are repaired ({counted(left, 'row')} left)"
                self._file_reasons.setdefault(shard.file, reason)
            elif shard.file in self._heads:
                _restore_size(path, shard)
                write_head(path, self._heads[shard.file])

    def _bad_shards(self) -> list[Shard]:
        return [shard for shard in self._manifest.shards if shard.file in self._bad_files]


def _restore_size(path: Path, shard: Shard) -> None:
    """Cut the file after its last row or append a hole. A file with a hole gets an invalid header of zeros."""
    with writing(path, os.O_RDWR | os.O_CREAT) as fd:
        if os.fstat(fd).st_size < shard.bytes:
            write_at(fd, bytes(shard.data_offset), 0)
            disk.fsync(fd)  # the zeros must be durable before the file has its full size
        disk.ftruncate(fd, shard.bytes)
    sync_folder(path.parent)


def _numbers(*runs: list[tuple[int, int]]) -> Iterator[int]:
    return (row for first, last in chain(*runs) for row in range(first, last + 1))
