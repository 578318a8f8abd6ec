"""The last step of a build: close the gaps that rejects left, then labels, samples, checksums, manifest.

Every step may be repeated: a gap is filled by a copy of a tail row, which stays where it was until store.json is
durable; only then are the shards cut to their rows and `.build` removed.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.allowance import Allowance
from decodeonce.prep.journal import BlockRecord, Journals
from decodeonce.prep.plan import Plan, read_plan
from decodeonce.prep.sources.base import Entry, name_bytes
from decodeonce.store import Manifest, Reject, Sample, StorePaths
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.files import ShardFile, page_aligned_buffer, write_atomic
from decodeonce.store.hashing import row_checksum
from decodeonce.store.manifest import read_manifest
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, line, reject_line, sample_line
from decodeonce.store.writer import seal_store, trim_shards, write_array

CHUNK_ROWS = 1 << 18


def finish(out: Path, allowance: Allowance) -> Manifest:
    """Make the planned and worked store `out` a finished one; returns its manifest.

    Raises BuildError with what is missing and the command that goes on. Finishing again a finished store, or one whose
    finish was killed, completes it.
    """
    paths = StorePaths(out)
    if not paths.manifest.exists():
        try:
            _finish_planned(paths, allowance)
        except (BuildError, FileNotFoundError):
            # Another finish may have come first, cut the shards and removed .build under this one: then all is done.
            if not paths.manifest.exists():
                raise
    manifest = read_manifest(paths.manifest)
    trim_shards(paths, manifest)
    if paths.build.exists():
        paths.plan.unlink(missing_ok=True)  # first: a task that is still alive looks for it before each block
        # The store is whole without this; on NFS a task that is still alive keeps the names of its open files.
        shutil.rmtree(paths.build, ignore_errors=True)
    return manifest


def _finish_planned(paths: StorePaths, allowance: Allowance) -> None:
    """All up to store.json; the plan's mappings end with this call, so that NFS lets go of their files."""
    plan, journals = read_plan(paths), Journals(paths.journals)
    _check_complete(plan, journals)
    _Finisher(plan, journals).finish(allowance)


def _check_complete(plan: Plan, journals: Journals) -> None:
    missing = [block for block in range(len(plan.blocks)) if block not in journals]
    if missing:
        raise BuildError(
            f"{plan.paths.root}: {len(missing)} of {len(plan.blocks)} blocks are not done (first {missing[0]}); "
            f"run `prep work {plan.paths.root}`, then `prep finish` again"
        )


@dataclass(frozen=True)
class _Moves:
    """Which planned row fills which hole; both ascending, so that k-th goes to k-th."""

    holes: NDArray[np.int64]
    tails: NDArray[np.int64]
    count: int

    def planned(self, first: int, last: int) -> NDArray[np.int64]:
        """The planned rows that lie at the final rows [first, last)."""
        rows = np.arange(first, last)
        a, b = np.searchsorted(self.holes, (first, last))
        rows[self.holes[a:b] - first] = self.tails[a:b]
        return rows


def _moves(planned: int, rejects: list[int]) -> _Moves:
    gone = np.array(sorted(rejects), np.int64)
    count = planned - len(gone)
    tails = np.setdiff1d(np.arange(count, planned), gone, assume_unique=True)
    return _Moves(gone[gone < count], tails, count)


class _Finisher:
    def __init__(self, plan: Plan, journals: Journals) -> None:
        self._plan = plan
        self._paths = plan.paths
        self._record = lru_cache(maxsize=64)(journals.record)
        self._rejects: list[tuple[int, str]] = []
        self._oddities: list[tuple[int, str]] = []
        self._crashes = 0
        self._sums, self._squares = np.zeros(3, object), np.zeros(3, object)
        for record in map(self._record, range(len(plan.blocks))):
            self._rejects += record.rejects
            self._oddities += record.oddities
            self._crashes += record.crashes
            self._sums += np.array(record.sums, object)
            self._squares += np.array(record.squares, object)
        self._moves = _moves(plan.count, [row for row, _ in self._rejects])

    def finish(self, allowance: Allowance) -> None:
        plan, paths, count = self._plan, self._paths, self._moves.count
        allowance.check(len(self._rejects) + len(plan.rejects), plan.candidates)
        if not count:
            raise BuildError(f"{paths.root}: every picture is a reject; see them with `prep status {paths.root}`")
        self._fill_holes()
        scratch = paths.build  # what a kill leaves there goes with it
        write_array(paths.labels, (count,), np.dtype("<i8"), self._labels(), scratch=scratch)
        write_array(paths.checksums, (count,), np.dtype("<u8"), self._checksums(), scratch=scratch)
        write_atomic(paths.samples, self._sample_lines(), scratch=scratch)
        write_atomic(paths.rejects, self._reject_lines(), scratch=scratch)
        seal_store(paths, self._draft(), shard_rows=plan.blocks.shard_rows, scratch=scratch)

    def _fill_holes(self) -> None:
        size, blocks = self._plan.recipe.row_bytes, self._plan.blocks
        suffix = CONTAINERS[self._plan.recipe.container].suffix
        buffer = page_aligned_buffer(size)
        for hole, tail in zip(self._moves.holes.tolist(), self._moves.tails.tolist(), strict=True):
            (from_shard, from_offset), (to_shard, to_offset) = blocks.place(tail), blocks.place(hole)
            with ShardFile(self._paths.shard(from_shard, suffix)) as source:
                source.read(buffer, from_offset)
                if row_checksum(buffer) != int(self._checksum(tail), 16):
                    raise BuildError(
                        f"{source.path}: planned row {tail} is not what was written; remove OUT, build again"
                    )
            with ShardFile(self._paths.shard(to_shard, suffix)) as target:
                target.write(buffer, to_offset)
                target.sync()

    def _of_row(self, row: int) -> tuple[BlockRecord, int]:
        return self._record(row // self._plan.blocks.block_rows), row % self._plan.blocks.block_rows

    def _checksum(self, row: int) -> str:
        record, index = self._of_row(row)
        return record.checksums[16 * index : 16 * index + 16]

    def _labels(self) -> Iterator[NDArray[np.int64]]:
        labels = self._plan.rows["label"]
        for first in range(0, self._moves.count, CHUNK_ROWS):
            yield labels[self._moves.planned(first, min(first + CHUNK_ROWS, self._moves.count))].astype(np.int64)

    def _checksums(self) -> Iterator[NDArray[np.uint64]]:
        step = self._plan.blocks.block_rows
        for first in range(0, self._moves.count, step):
            rows = self._moves.planned(first, min(first + step, self._moves.count)).tolist()
            yield np.array([int(self._checksum(row), 16) for row in rows], np.uint64)

    def _sample_lines(self) -> Iterator[bytes]:
        yield line(SAMPLE_COLUMNS)
        step = self._plan.blocks.block_rows
        for first in range(0, self._moves.count, step):
            last = min(first + step, self._moves.count)
            planned = self._moves.planned(first, last).tolist()
            entries = self._plan.entries(first, last)
            for row, moved in ((row, tail) for row, tail in enumerate(planned, first) if row != tail):
                entries[row - first] = self._plan.entry(moved)
            yield b"".join(map(self._sample_line, range(first, last), planned, entries))

    def _sample_line(self, row: int, planned: int, entry: Entry) -> bytes:
        record, index = self._of_row(planned)
        width, height = record.sizes[2 * index : 2 * index + 2]
        digest = record.digests[16 * index : 16 * index + 16]
        name = self._plan.classes[entry.label].name
        return sample_line(Sample(row, entry.label, name, entry.text, width, height, "", digest))

    def _reject_lines(self) -> Iterator[bytes]:
        found = list(self._plan.rejects)
        for rows, action in ((self._rejects, "rejected"), (self._oddities, "kept")):
            found += [Reject(self._plan.entry(row).text, reason, action) for row, reason in rows]
        yield line(REJECT_COLUMNS)
        yield from map(reject_line, sorted(found, key=lambda r: (name_bytes(r.source), r.action, r.reason)))

    def _draft(self) -> Manifest:
        plan, facts = self._plan, self._plan.facts
        pixels = self._moves.count * plan.recipe.height * plan.recipe.width
        mean = [int(s) / pixels for s in self._sums]
        # exact integers up to the last step: n*sum(x^2) - sum(x)^2 loses nothing, a float variance would
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
            recipe=facts["recipe"],
            source={"kind": facts["source"]["kind"], "digest": facts["source"]["digest"]},
            columns=(),
            files={},
            decoder_crashes=self._crashes,
        )
