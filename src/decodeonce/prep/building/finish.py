"""The last step of a build: fill the rows of rejects, then write labels, checksums, samples and the manifest.

Every step may be repeated. A hole is filled with a copy of a row from the end of the store. That row stays in place
until store.json is durable; then the shards are cut to their final size and `.build` is removed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import REPLACED_ERRORS, BuildError
from decodeonce.formatting import quoted
from decodeonce.prep.building.journal import FACTS, Journals, summed_lines
from decodeonce.prep.building.max_bad import Allowance
from decodeonce.prep.building.output_dir import check_shard
from decodeonce.prep.building.plan import Plan, read_plan
from decodeonce.prep.entry import name_bytes, name_text
from decodeonce.prep.sources.base import DecodedRows
from decodeonce.store import Column, Manifest, StorePaths
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.durable import remove_file, remove_tree, sync_folder
from decodeonce.store.hashing import row_checksum
from decodeonce.store.manifest import read_manifest
from decodeonce.store.shard_file import ShardFile, page_aligned_buffer
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, escape, escaped_sample_line, line, reject_line
from decodeonce.store.writer import seal_store, trim_shards, write_array, write_small

CHUNK_ROWS = 1 << 13


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
            if (isinstance(error, OSError) and error.errno not in REPLACED_ERRORS) or not paths.manifest.exists():
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


class _Finisher:
    """Writes the files of a store from its plan and its journals, up to store.json.

    Memory per planned row is 64 bytes at most, and about 100 bytes more for each row that is a box.
    """

    def __init__(self, plan: Plan, journals: Journals) -> None:
        self._plan, self._paths = plan, plan.paths
        self._rejects: list[tuple[int, str]] = []
        self._left_out: list[tuple[int, str]] = []
        self._unusual: list[tuple[int, str]] = []
        self._boxes: dict[int, str] = {}
        self._crashes = 0
        self._sums, self._squares = np.zeros(3, object), np.zeros(3, object)
        facts = np.empty(plan.count, FACTS)
        for block, record in enumerate(journals.records(range(len(plan.blocks)))):
            facts[plan.blocks[block].first : plan.blocks[block].last] = record.facts
            self._rejects += record.rejects
            self._left_out += record.left_out
            self._unusual += record.unusual
            self._boxes.update(record.boxes)
            self._crashes += record.crashes
            self._sums += np.array(record.sums, object)
            self._squares += np.array(record.squares, object)
        self._planned = _planned_rows(plan.count, [row for row, _ in [*self._rejects, *self._left_out]])
        self._facts = facts[self._planned]
        self._source = plan.source()
        self._columns = [*plan.columns, *self._source.columns()]

    @property
    def _count(self) -> int:
        return len(self._planned)

    def finish(self, allowance: Allowance) -> Manifest:
        plan, paths, count = self._plan, self._paths, self._count
        rejects = [*plan.rejects, *(plan.reject(row, reason) for row, reason in self._rejects)]
        allowance.check(len(rejects), plan.candidates, str(rejects[0]) if rejects else "", paths.root)
        if not count:
            command = f"prep status {quoted(str(paths.root))}"
            raise BuildError(f"{paths.root}: every image was rejected or left out; list them with: {command}")
        self._fill_holes()
        scratch = paths.build  # files that a kill leaves there are removed with it
        arrays: list[tuple[Path, tuple[int, ...], str, Iterator[NDArray[Any]]]] = [
            (paths.labels, (), "<i8", self._labels()),
            (paths.checksums, (), "<u8", iter([self._facts["checksum"]])),
        ]
        for column in self._columns:
            arrays.append((paths.root / column.file, column.shape, column.dtype, self._column(column)))
        files = {
            path.name: write_array(path, (count, *shape), np.dtype(dtype), parts, scratch=scratch)
            for path, shape, dtype, parts in arrays
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
        """Copy the planned row of each hole into it, and check its checksum."""
        buffer = page_aligned_buffer(self._plan.recipe.row_bytes)
        suffix = CONTAINERS[self._plan.recipe.container].suffix
        holes = np.flatnonzero(self._planned != np.arange(self._count)).tolist()
        for shards, rows in itertools.groupby(holes, self._shards_of):
            hole_shard, tail_shard = (self._paths.shard(index, suffix) for index in shards)
            with ShardFile(tail_shard) as source, ShardFile(hole_shard) as target:
                for hole in rows:
                    self._copy(source, int(self._planned[hole]), target, hole, buffer)
                target.sync()

    def _shards_of(self, hole: int) -> tuple[int, int]:
        return self._plan.blocks.place(hole)[0], self._plan.blocks.place(int(self._planned[hole]))[0]

    def _copy(self, source: ShardFile, tail: int, target: ShardFile, hole: int, buffer: memoryview) -> None:
        source.read(buffer, self._plan.blocks.place(tail)[1])
        if row_checksum(buffer) != self._facts["checksum"][hole]:
            raise BuildError(f"{source.path}: planned row {tail} does not match its checksum; remove OUT, build again")
        target.write(buffer, self._plan.blocks.place(hole)[1])

    def _chunks(self) -> Iterator[slice]:
        return (slice(first, min(first + CHUNK_ROWS, self._count)) for first in range(0, self._count, CHUNK_ROWS))

    def _labels(self) -> Iterator[NDArray[np.int64]]:
        labels = self._plan.samples.rows["label"]
        return (labels[self._planned[chunk]].astype(np.int64) for chunk in self._chunks())

    def _column(self, column: Column) -> Iterator[NDArray[Any]]:
        plan, samples = self._plan, self._plan.samples
        for chunk in self._chunks():
            places = self._planned[chunk]
            if column in plan.columns:
                yield plan.column_values(plan.columns.index(column))[places]
            else:
                planned = {name: values[places] for name, values in samples.planned.items()}
                rows = DecodedRows(plan.recipe, samples.rows[places], self._facts[chunk], planned)
                yield self._source.column_values(column, rows)

    def _sample_lines(self) -> Iterator[bytes]:
        yield line(SAMPLE_COLUMNS)
        names = [escape(cls.name) for cls in self._plan.classes]
        for chunk in self._chunks():
            values, planned = self._plan.samples.values(chunk.start, chunk.stop), self._planned[chunk].tolist()
            for row, tail in enumerate(planned, chunk.start):
                if tail != row:
                    values[row - chunk.start] = self._plan.samples.values(tail, tail + 1)[0]
            facts = self._facts[chunk][["width", "height", "digest"]].tolist()
            yield b"".join(
                escaped_sample_line(
                    row,
                    label,
                    names[label],
                    escape(name_text(name)),
                    width,
                    height,
                    self._boxes.get(tail, ""),
                    f"{digest:016x}",
                )
                for row, tail, (name, label, _, _), (width, height, digest) in zip(
                    itertools.count(chunk.start), planned, values, facts, strict=False
                )
            )

    def _reject_lines(self) -> Iterator[bytes]:
        found = [*self._plan.rejects, *self._source.carried_rejects()]
        for rows, action in ((self._rejects, "rejected"), (self._left_out, "left out"), (self._unusual, "kept")):
            found += [self._plan.reject(row, reason, action) for row, reason in rows]
        yield line(REJECT_COLUMNS)
        yield from map(reject_line, sorted(found, key=lambda r: (name_bytes(r.source), r.action, r.reason)))

    def _draft(self) -> Manifest:
        plan, facts = self._plan, self._plan.facts
        pixels = self._count * summed_lines(plan.recipe.height) * plan.recipe.width
        mean = [int(s) / pixels for s in self._sums]
        # Exact integers until the last step: n*sum(x^2) - sum(x)^2 would lose precision in floating point.
        variance = [(pixels * int(q) - int(s) ** 2) / pixels**2 for s, q in zip(self._sums, self._squares, strict=True)]
        return Manifest(
            count=self._count,
            shape=plan.recipe.shape,
            container=plan.recipe.container,
            block_rows=plan.blocks.block_rows,
            shards=(),
            classes=plan.classes,
            pixel_mean=tuple(mean),
            pixel_std=tuple(map(math.sqrt, variance)),
            recipe=facts["manifest"]["recipe"],
            source=facts["manifest"]["source"],
            columns=tuple(self._columns),
            files={},
            box_classes=None if (names := facts["manifest"].get("box_classes")) is None else tuple(names),
            decoder_crashes=self._crashes + facts["manifest"].get("decoder_crashes", 0),
        )


def _planned_rows(planned: int, without_pixels: list[int]) -> NDArray[np.int64]:
    """Return the planned row of each row of the store: rows from the end fill the holes, in ascending order."""
    gone = np.array(sorted(without_pixels), np.int64)
    rows = np.arange(planned - len(gone))
    rows[gone[gone < len(rows)]] = np.setdiff1d(np.arange(len(rows), planned), gone, assume_unique=True)
    return rows
