"""The last step of a build: fill the rows of rejects, then write labels, checksums, samples and the manifest.

Every step may be repeated. A hole is filled with a copy of a row from the end of the store. That row stays in place
until store.json is durable; then the shards are cut to their final size and `.build` is removed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
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
from decodeonce.prep.pixels.geometry import fit_to, turned_box, upright
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

    Memory per planned row is 44 bytes, and 100 bytes for each row that is a box.
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
        self._columns = Columns(plan, self._planned, self._facts)

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
        for column in self._columns.all:
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
        return (self._columns.values(column, chunk) for chunk in self._chunks())

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
        found = [*self._plan.rejects, *self._plan.source().carried_rejects()]
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
            columns=tuple(self._columns.all),
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


class Columns:
    """The columns of a store that is being finished.

    Args:
        plan: The plan of the store.
        planned: The planned row of each row of the store.
        facts: One record of dtype FACTS per row of the store.

    Attributes:
        all: The columns in the order of the manifest.
    """

    def __init__(self, plan: Plan, planned: NDArray[np.int64], facts: NDArray[np.void]) -> None:
        self._plan, self._planned, self._facts = plan, planned, facts
        self._source = plan.source()
        self._numbers = {column: number for number, column in enumerate(plan.columns)}
        self._others, most = self._source.columns(), plan.recipe.kept_boxes
        self._kept: dict[Column, Callable[[slice], NDArray[Any]]] = {}
        if most:
            self._kept[Column("boxes", "boxes.npy", "<f4", (most, 4))] = self._boxes  # in pixels of the row, then 0
            self._kept[Column("box_count", "box_count.npy", "<i4", ())] = self._box_counts
            self._kept[Column("box_labels", "box_labels.npy", "<i4", (most,))] = self._box_labels  # then -1
        self.all = [*self._numbers, *self._others, *self._kept]

    def values(self, column: Column, chunk: slice) -> NDArray[Any]:
        """Return the values of a column, (n, *shape), for a slice of the store's rows."""
        if column in self._kept:
            return self._kept[column](chunk)
        if column in self._numbers:
            values: NDArray[Any] = self._plan.column_values(self._numbers[column])[self._planned[chunk]]
            return values
        return self._source.column_values(
            column, [self._plan.samples.entry(row) for row in self._planned[chunk].tolist()]
        )

    def _boxes(self, chunk: slice) -> NDArray[np.float64]:
        placed = self._placed(chunk)
        return _packed(placed, _present(placed), 0)

    def _box_counts(self, chunk: slice) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = _present(self._placed(chunk)).sum(1)
        return counts

    def _box_labels(self, chunk: slice) -> NDArray[np.int32]:
        return _packed(self._plan.box_labels[self._planned[chunk]], _present(self._placed(chunk)), -1)

    def _placed(self, chunk: slice) -> NDArray[np.float64]:
        """Return the boxes moved with their image into the row: rotated, scaled, shifted and clipped, (n, K, 4).

        Missing boxes are NaN, and those outside have no area. Each of the three columns computes this again, for many
        rows at once: 2 µs per row, where one row at a time takes 25 µs.
        """
        recipe, facts = self._plan.recipe, self._facts[chunk][["width", "height", "turn"]].tolist()
        boxes, fits = np.array(self._plan.samples.boxes[self._planned[chunk]]), np.empty((len(facts), 1, 4))
        for index, (width, height, turn) in enumerate(facts):
            fit = fit_to(recipe.fit, upright((width, height), turn), (recipe.width, recipe.height))
            fits[index] = fit.width, fit.height, fit.left, fit.top
            if turn != 1:
                boxes[index] = [turned_box(box, turn) for box in boxes[index].tolist()]
        placed = boxes * fits[:, :, [0, 1, 0, 1]] - fits[:, :, [2, 3, 2, 3]]
        return placed.clip(0, 2 * (recipe.width, recipe.height))


def _present(boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which boxes have an area, (n, K)."""
    present: NDArray[np.bool_] = np.all(boxes[:, :, :2] < boxes[:, :, 2:], axis=2)
    return present


def _packed(values: NDArray[Any], present: NDArray[np.bool_], absent: int) -> NDArray[Any]:
    """Return the values (n, K, ...) with those of present boxes first in each row, padded with `absent`."""
    packed = np.full_like(values, absent)
    packed[np.sort(present)[:, ::-1]] = values[present]
    return packed
