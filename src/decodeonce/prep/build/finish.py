"""The last step of a build: fill the rows of rejects, then write labels, checksums, samples and the manifest.

Every step may be repeated. A hole is filled with a copy of a row from the end of the store. That row stays in place
until store.json is durable; then the shards are cut to their final size and `.build` is removed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted
from decodeonce.prep.build.columns import PlannedColumn, planned_columns
from decodeonce.prep.build.journal import BlockRecord, Journals
from decodeonce.prep.build.max_bad import Allowance
from decodeonce.prep.build.output_dir import check_shard
from decodeonce.prep.build.pixel_sums import summed_lines
from decodeonce.prep.build.plan import Plan, read_plan
from decodeonce.prep.entry import name_bytes, name_text
from decodeonce.store import Manifest, Reject, StorePaths
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.durable import remove_file, remove_tree, sync_folder
from decodeonce.store.hashing import row_checksum
from decodeonce.store.manifest import read_manifest
from decodeonce.store.regular_files import REPLACED
from decodeonce.store.shard_file import ShardFile, page_aligned_buffer
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, escape, escaped_sample_line, line, reject_line
from decodeonce.store.writer import seal_store, trim_shards, write_array, write_small

CHUNK_ROWS = 1 << 18


def finish(out: Path, allowance: Allowance) -> Manifest:
    """Turn a planned and decoded build into a finished store.

    Safe to repeat: if the store is finished already, or an earlier finish was killed, this completes it.

    Args:
        out: Folder of the store.
        allowance: Maximum number of rejects, such as `Work().allowance`.

    Returns:
        The manifest of the finished store.

    Raises:
        BuildError: Blocks are missing (the text names the command to run), there are too many rejects, or no row is
            left.
    """
    paths = StorePaths(out)
    manifest = None
    if not paths.manifest.exists():
        try:
            manifest = _finish_planned(paths, allowance)
        except (BuildError, OSError) as error:
            # Another process may have finished the store first, cut the shards and removed .build.
            if (isinstance(error, OSError) and error.errno not in REPLACED) or not paths.manifest.exists():
                raise
    manifest = manifest or read_manifest(paths.manifest)
    sync_folder(paths.root)  # again, because the finish that wrote store.json may have failed at this point
    trim_shards(paths, manifest)
    if paths.build.exists():
        remove_file(paths.plan)  # first, because a task that is still running checks for it before each block
        with suppress(OSError):  # not needed for a complete store; on NFS, open files of a running task stay in .build
            remove_tree(paths.build)
    return manifest


def _finish_planned(paths: StorePaths, allowance: Allowance) -> Manifest:
    """Write everything up to store.json. The plan's mappings end with this call, so that NFS releases their files."""
    plan, journals = read_plan(paths), Journals(paths.journals)
    _check_complete(plan, journals)
    for index in range(plan.blocks.shards):
        check_shard(plan, index)
    return _Finisher(plan, journals).finish(allowance)


def _check_complete(plan: Plan, journals: Journals) -> None:
    missing = [block for block in range(len(plan.blocks)) if block not in journals]
    if missing:
        raise BuildError(
            f"{plan.paths.root}: {len(missing)} of {len(plan.blocks)} blocks are not done (first {missing[0]}); "
            f"run: {_next_step(plan.paths)}"
        )


def _next_step(paths: StorePaths) -> str:
    """Return the command that continues the build: the submit script if there is one."""
    if paths.submit.exists():
        return f"bash {quoted(str(paths.submit))}"
    out = str(paths.root)
    return f"prep work {quoted(out)} && prep finish {quoted(out)}"


@dataclass(frozen=True)
class _Moves:
    """Which planned row fills which hole: the k-th of `tails` fills the k-th of `holes`; both are ascending."""

    holes: NDArray[np.int64]
    tails: NDArray[np.int64]
    count: int

    def into(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return (hole, planned row that fills it) for the holes in [first, last)."""
        a, b = np.searchsorted(self.holes, (first, last))
        return list(zip(self.holes[a:b].tolist(), self.tails[a:b].tolist(), strict=True))


def _moves(planned: int, rejects: list[int]) -> _Moves:
    gone = np.array(sorted(rejects), np.int64)
    count = planned - len(gone)
    tails = np.setdiff1d(np.arange(count, planned), gone, assume_unique=True)
    return _Moves(gone[gone < count], tails, count)


class _Finisher:
    def __init__(self, plan: Plan, journals: Journals) -> None:
        self._plan = plan
        self._paths = plan.paths
        self._journals = journals
        self._record = lru_cache(maxsize=64)(journals.record)
        self._columns = planned_columns(plan, self._record_of)
        self._class_names = [escape(cls.name) for cls in plan.classes]
        self._rejects: list[tuple[int, str]] = []
        self._left_out: list[tuple[int, str]] = []
        self._oddities: list[tuple[int, str]] = []
        self._crashes = 0
        self._sums, self._squares = np.zeros(3, object), np.zeros(3, object)
        for record in journals.records(range(len(plan.blocks))):
            self._rejects += record.rejects
            self._left_out += record.left_out
            self._oddities += record.unusual
            self._crashes += record.crashes
            self._sums += np.array(record.sums, object)
            self._squares += np.array(record.squares, object)
        self._moves = _moves(plan.count, [row for row, _ in [*self._rejects, *self._left_out]])

    def finish(self, allowance: Allowance) -> Manifest:
        plan, paths, count = self._plan, self._paths, self._moves.count
        rejects = [*plan.rejects, *(Reject(plan.entry(row).text, why, "rejected") for row, why in self._rejects)]
        allowance.check(len(rejects), plan.candidates, str(rejects[0]) if rejects else "", paths.root)
        if not count:
            command = f"prep status {quoted(str(paths.root))}"
            raise BuildError(f"{paths.root}: every image was rejected or left out; list them with: {command}")
        self._fill_holes()
        scratch = paths.build  # files that a kill leaves there are removed with it
        wanted: list[tuple[Path, tuple[int, ...], str, Iterator[NDArray[Any]]]] = [
            (paths.labels, (), "<i8", self._labels()),
            (paths.checksums, (), "<u8", self._checksums()),
        ]
        for planned in self._columns:
            column = planned.column
            wanted.append((paths.root / column.file, column.shape, column.dtype, self._column(planned)))
        files = {
            path.name: write_array(path, (count, *shape), np.dtype(dtype), parts, scratch=scratch)
            for path, shape, dtype, parts in wanted
        }
        for path, lines in ((paths.samples, self._sample_lines()), (paths.rejects, self._reject_lines())):
            files[path.name] = write_small(path, lines, scratch=scratch)
        return seal_store(
            paths,
            self._draft(),
            shard_rows=plan.blocks.shard_rows,
            scratch=scratch,
            files=files,
            labels=self._labels(),
        )

    def _fill_holes(self) -> None:
        buffer = page_aligned_buffer(self._plan.recipe.row_bytes)
        suffix = CONTAINERS[self._plan.recipe.container].suffix
        for shards, moves in itertools.groupby(self._moves.into(0, self._moves.count), self._shards_of):
            hole_shard, tail_shard = (self._paths.shard(index, suffix) for index in shards)
            with ShardFile(tail_shard) as source, ShardFile(hole_shard) as target:
                for hole, tail in moves:
                    self._copy(source, tail, target, hole, buffer)
                target.sync()

    def _shards_of(self, move: tuple[int, int]) -> tuple[int, int]:
        hole, tail = move
        return self._plan.blocks.place(hole)[0], self._plan.blocks.place(tail)[0]

    def _copy(self, source: ShardFile, tail: int, target: ShardFile, hole: int, buffer: memoryview) -> None:
        source.read(buffer, self._plan.blocks.place(tail)[1])
        if row_checksum(buffer) != self._checksum(tail):
            raise BuildError(f"{source.path}: planned row {tail} does not match its checksum; remove OUT, build again")
        target.write(buffer, self._plan.blocks.place(hole)[1])

    def _labels(self) -> Iterator[NDArray[np.int64]]:
        planned = self._plan.rows["label"]
        for first in range(0, self._moves.count, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, self._moves.count)
            labels = planned[first:last].astype(np.int64)
            for hole, tail in self._moves.into(first, last):
                labels[hole - first] = planned[tail]
            yield labels

    def _blocks(self) -> Iterator[tuple[int, int, BlockRecord]]:
        """Yield (first row, last row, record) of each block that holds rows of the finished store."""
        step, count = self._plan.blocks.block_rows, self._moves.count
        firsts = range(0, count, step)
        for first, record in zip(firsts, self._journals.records(range(len(firsts))), strict=True):
            yield first, min(first + step, count), record

    def _record_of(self, row: int) -> BlockRecord:
        return self._record(row // self._plan.blocks.block_rows)

    def _checksum(self, row: int) -> int:
        start = 16 * (row % self._plan.blocks.block_rows)
        return int(self._record_of(row).checksums[start : start + 16], 16)

    def _checksums(self) -> Iterator[NDArray[np.uint64]]:
        for first, last, record in self._blocks():
            digits = record.checksums[: 16 * (last - first)]
            checksums = np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64)
            for hole, tail in self._moves.into(first, last):
                checksums[hole - first] = self._checksum(tail)
            yield checksums

    def _sample_lines(self) -> Iterator[bytes]:
        yield line(SAMPLE_COLUMNS)
        for first, last, record in self._blocks():
            lines = self._lines(record, first, last, first)
            for hole, tail in self._moves.into(first, last):
                lines[hole - first : hole - first + 1] = self._lines(self._record_of(tail), tail, tail + 1, hole)
            yield b"".join(lines)

    def _lines(self, record: BlockRecord, first: int, last: int, row: int) -> list[bytes]:
        """Return the lines of samples.tsv for planned rows [first, last), all in one block, as rows from `row` on."""
        index, names = first % self._plan.blocks.block_rows, self._class_names
        sides, digests = iter(record.sizes[2 * index :]), record.digests[16 * index :]
        boxes = dict(record.boxes)
        return [
            escaped_sample_line(
                number,
                label,
                names[label],
                escape(name_text(name)),
                width,
                height,
                boxes.get(planned, ""),
                digests[at : at + 16],
            )
            for number, planned, at, (name, label, _, _), width, height in zip(
                itertools.count(row),
                range(first, last),
                itertools.count(0, 16),
                self._plan.values(first, last),
                sides,
                sides,
                strict=False,
            )
        ]

    def _column(self, column: PlannedColumn) -> Iterator[NDArray[Any]]:
        for first, last, _ in self._blocks():
            planned = np.arange(first, last)
            for hole, tail in self._moves.into(first, last):
                planned[hole - first] = tail
            yield column.values(planned)

    def _reject_lines(self) -> Iterator[bytes]:
        found = [*self._plan.rejects, *self._plan.source().carried_rejects()]
        for rows, action in ((self._rejects, "rejected"), (self._left_out, "left out"), (self._oddities, "kept")):
            found += [Reject(self._plan.entry(row).text, reason, action) for row, reason in rows]
        yield line(REJECT_COLUMNS)
        yield from map(reject_line, sorted(found, key=lambda r: (name_bytes(r.source), r.action, r.reason)))

    def _draft(self) -> Manifest:
        plan, facts = self._plan, self._plan.facts
        pixels = self._moves.count * summed_lines(plan.recipe.height) * plan.recipe.width
        mean = [int(s) / pixels for s in self._sums]
        # Exact integers until the last step: n*sum(x^2) - sum(x)^2 would lose precision in floating point.
        variance = [(pixels * int(q) - int(s) ** 2) / pixels**2 for s, q in zip(self._sums, self._squares, strict=True)]
        return Manifest(
            count=self._moves.count,
            shape=plan.recipe.shape,
            container=plan.recipe.container,
            block_rows=plan.blocks.block_rows,
            shards=(),
            classes=plan.classes,
            pixel_mean=tuple(mean),
            pixel_std=tuple(map(math.sqrt, variance)),
            recipe=facts["manifest"]["recipe"],
            source=facts["manifest"]["source"],
            columns=tuple(column.column for column in self._columns),
            files={},
            box_classes=None if (names := facts["manifest"].get("box_classes")) is None else tuple(names),
            decoder_crashes=self._crashes + facts["manifest"].get("decoder_crashes", 0),
        )
