"""The last step of a build: fill the rows of rejects, then write labels, checksums, samples and the manifest.

Every step may be repeated. A hole is filled with a copy of a row from the end of the store. That row stays in place
until store.json is durable; then the shards are cut to their final size and `.build` is removed.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import REPLACED_ERRORS, BuildError, Stopped
from decodeonce.formatting import counted, quoted
from decodeonce.prep.building.journal import FACTS, Journals, PaletteColors, add_color, summed_lines
from decodeonce.prep.building.output_dir import check_not_truncated, clean_up, failure_of
from decodeonce.prep.building.plan import Plan, max_bad_flag, read_plan
from decodeonce.prep.listing import SEGMENTATION, name_bytes, name_text
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.sources.base import DecodedRows
from decodeonce.store import Column, Manifest
from decodeonce.store.files import ShardFile, page_aligned_buffer, sync_folder
from decodeonce.store.hashing import row_checksum
from decodeonce.store.manifest import SmallFile, read_manifest
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, Reject, line, reject_line, sample_lines
from decodeonce.store.writer import seal_store, write_array, write_small

CHUNK_ROWS = 1 << 13


def finish(out: str | os.PathLike[str], max_bad: str = "auto") -> Manifest:
    """Turn a planned and decoded build into a finished store.

    The call is safe to repeat. If an earlier call was killed, the next call completes the store. If the store is
    already finished, the call changes nothing.

    Args:
        out: Folder of the store.
        max_bad: Maximum number of rejects, as in `WorkSettings`.

    Returns:
        The manifest of the finished store.

    Raises:
        BuildError: Blocks are missing (the text names the command to run), there are too many rejects, or no row is
            left.

    Example:
        >>> out = Path("small.store")
        >>> plan = make_plan(open_folder("imagenet/val"), out, Recipe(height=64, width=64))
        >>> work(out)
        >>> finish(out).shape
        (64, 64, 3)
    """
    paths = BuildPaths(out)
    manifest = None
    if not paths.manifest.exists():
        try:
            manifest = _finish_planned(paths, max_bad)
        except (BuildError, Stopped, OSError) as error:
            # Another process may have finished the store first, cut the shards and removed .build.
            if (isinstance(error, OSError) and error.errno not in REPLACED_ERRORS) or not paths.manifest.exists():
                raise failure_of(error, paths) from None
    manifest = manifest or read_manifest(paths.manifest)
    sync_folder(paths.root)  # again, because the finish that wrote store.json may have failed at this point
    clean_up(paths, manifest)
    return manifest


def _finish_planned(paths: BuildPaths, max_bad: str) -> Manifest:
    """Write all files, store.json last. The plan's mappings end with this call, so that NFS releases their files."""
    plan, journals = read_plan(paths), Journals(paths.journals)
    missing = [block for block in range(len(plan.blocks)) if block not in journals.lines]
    if missing:
        found = f"{len(missing)} of {len(plan.blocks)} blocks are not done (first {missing[0]})"
        raise _not_done(paths, found, max_bad)
    for index in range(plan.blocks.shards):
        check_not_truncated(plan, index)
    return _Finisher(plan, journals).finish(max_bad)


def _not_done(paths: BuildPaths, what: str, max_bad: str) -> BuildError:
    out = f"{quoted(paths.root)}{max_bad_flag(max_bad)}"
    command = f"bash {quoted(paths.submit)}" if paths.submit.exists() else f"prep work {out} && prep finish {out}"
    return BuildError(f"{paths.root}: {what}; run: {command}")


class _Finisher:
    """Writes the files of a store from its plan and its journals, store.json last.

    Memory per planned row is 64 bytes at most, and about 100 bytes more for each row that is a box. For the labels and
    columns of a dataset, it is about 100 bytes more, and 16 bytes for each number.
    """

    def __init__(self, plan: Plan, journals: Journals) -> None:
        self._plan, self._paths, self._journals = plan, plan.paths, journals
        self._boxes: dict[int, str] = {}
        self._colors = PaletteColors()
        self._crashes = plan.content["manifest"].get("decoder_crashes", 0)
        self._sums, self._squares = np.zeros((2, 3), object)  # exact integers
        facts, holes, listed = np.empty(plan.count, FACTS), list[int](), list[tuple[int, str, str]]()
        for record in journals.records(range(len(plan.blocks))):
            block = plan.blocks[record.block]
            facts[block.first : block.last] = record.facts
            holes += record.holes
            listed += record.rejects
            self._boxes.update(record.boxes)
            for index_of_mask, rows in record.colors.items():
                for color, row in rows.items():
                    add_color(self._colors, index_of_mask, color, row)
            self._crashes += record.crashes
            self._sums += np.array(record.sums, object)
            self._squares += np.array(record.squares, object)
        self._listed = plan.rejects + plan.rejects_of(sorted(listed))
        self._row_from = _rows_from(plan.count, holes)
        self._count = len(self._row_from)
        self._facts = facts[self._row_from]
        self._source = plan.source()

    def finish(self, max_bad: str) -> Manifest:
        plan, paths = self._plan, self._paths
        rejects = [reject for reject in self._listed if reject.action == "rejected"]
        plan.check_rejects(len(rejects), next(iter(rejects), ""), max_bad, plan.count)
        if not self._count:
            command = f"prep status {quoted(paths.root)}"
            raise BuildError(f"{paths.root}: every image was rejected or left out; list them with: {command}")
        if self._colors:
            self._warn_of_palettes()
        if holes := np.flatnonzero(self._row_from != np.arange(self._count)).tolist():
            self._fill_holes(holes)
        records = self._journals.records(range(len(plan.blocks)))
        late = (facts for record in records for facts in record.late)
        self._samples = self._source.with_late_facts(plan.samples, late)
        self._warn_of_lost_classes()
        self._warn_of_small_images()
        self._columns = [*self._samples.columns, *self._source.columns()]
        scratch = paths.build  # files that a kill leaves there are removed with it
        files = dict[str, SmallFile]()

        def write(path: Path, dtype: str, parts: Iterable[np.ndarray], shape: tuple[int, ...] = ()) -> None:
            files[path.name] = write_array(path, (self._count, *shape), np.dtype(dtype), parts, scratch=scratch)

        write(paths.labels, "<i8", self._labels())
        write(paths.checksums, "<u8", [self._facts["checksum"]])
        for column in self._columns:
            write(paths.root / column.file, column.dtype, self._column(column), column.shape)
        for path, lines in ((paths.samples, self._sample_lines()), (paths.rejects, self._reject_lines())):
            files[path.name] = write_small(path, lines, scratch=scratch)
        draft, shard_rows, labels = self._draft(), plan.blocks.shard_rows, self._labels()
        return seal_store(paths, draft, shard_rows=shard_rows, scratch=scratch, files=files, labels=labels)

    def _warn_of_palettes(self) -> None:
        """Warn if masks have palettes in which an index has several colors, so that it may be several classes."""
        different = [index for index, rows in self._colors.items() if len(rows) > 1]
        if not different:
            return
        different.sort(key=lambda index: (len(index), index))  # index 2 before index 10
        rows = self._colors[different[0]]
        first, second = (f"#{color} for {self._plan.samples.entry(row).text}" for color, row in rows.items())
        found = f"{different[0]} of the palette is {first}, but {second} (indexes that differ: {len(different)})"
        self._warn(f"{found}; if the colors are classes, replace them by numbers ({SEGMENTATION}) and build again")

    def _warn_of_lost_classes(self) -> None:
        """Warn if no image of a class became a row."""
        labels, classes = self._samples.records["label"], self._samples.classes
        listed, rows = (np.bincount(some, minlength=len(classes)) for some in (labels, labels[self._row_from]))
        if lost := np.flatnonzero((listed > 0) & (rows == 0)).tolist():
            found = f"{len(lost)} of {counted(len(classes), 'class', 'classes')} have no rows"
            first = f"first {lost[0]}, {classes[lost[0]].name!r}"
            self._warn(f"{found} ({first}); see rejects.tsv")

    def _warn_of_small_images(self) -> None:
        """Warn if most images were enlarged to four times their sides, as those of CIFAR by the default size."""
        recipe, facts = self._plan.recipe, self._facts
        small = np.flatnonzero((4 * facts["width"] <= recipe.width) & (4 * facts["height"] <= recipe.height))
        if 4 * len(small) > 3 * self._count and not self._boxes:
            some, size = f"{len(small):,} of {counted(self._count, 'image')}", f"{recipe.height}x{recipe.width}"
            found = f"{some} have at most a quarter of the height and width of {size}"
            first = f"the first has {facts['height'][small[0]]}x{facts['width'][small[0]]}"
            self._warn(f"{found} ({first}); a smaller --size stores the same pixels in fewer bytes")

    def _warn(self, text: str) -> None:
        logging.getLogger("decodeonce").warning("%s: %s", self._paths.root, text)

    def _fill_holes(self, holes: list[int]) -> None:
        """Copy the planned row of each hole into it, and check its checksum."""
        plan, place = self._plan, self._plan.blocks.place
        buffer = page_aligned_buffer(plan.recipe.row_bytes)
        moves = [(place(int(self._row_from[hole])), place(hole), hole) for hole in holes]
        for (tail_shard, hole_shard), some in itertools.groupby(moves, lambda move: (move[0][0], move[1][0])):
            with ShardFile(plan.shard(tail_shard)) as source, ShardFile(plan.shard(hole_shard)) as target:
                for (_, from_offset), (_, to_offset), hole in some:
                    source.read(buffer, from_offset)
                    if row_checksum(buffer) != self._facts["checksum"][hole]:
                        row = f"planned row {self._row_from[hole]}"
                        raise BuildError(f"{source.path}: {row} does not match its checksum; remove OUT, build again")
                    target.write(buffer, to_offset)
                target.sync()

    def _chunks(self) -> Iterator[slice]:
        return (slice(first, min(first + CHUNK_ROWS, self._count)) for first in range(0, self._count, CHUNK_ROWS))

    def _labels(self) -> Iterator[NDArray[np.int64]]:
        labels = self._samples.records["label"]
        return (labels[self._row_from[chunk]].astype(np.int64) for chunk in self._chunks())

    def _column(self, column: Column) -> Iterator[np.ndarray]:
        plan, samples = self._plan, self._samples
        for chunk in self._chunks():
            places = self._row_from[chunk]
            if column in samples.columns:
                yield samples.numbers[column.file][places]
            else:
                numbers = {name: values[places] for name, values in samples.numbers.items()}
                rows = DecodedRows(plan.recipe, samples.records[places], self._facts[chunk], numbers)
                yield self._source.column_values(column, rows)

    def _sample_lines(self) -> Iterator[bytes]:
        """Yield samples.tsv in chunks."""
        yield line(SAMPLE_COLUMNS)
        samples, names = self._samples, [cls.name for cls in self._samples.classes]
        for chunk in self._chunks():
            listed, places = samples.facts(chunk.start, chunk.stop), self._row_from[chunk]
            for hole in np.flatnonzero(places != np.arange(chunk.start, chunk.stop)):
                listed[hole] = samples.facts(places[hole], places[hole] + 1)[0]
            decoded = self._facts[chunk][["width", "height", "digest"]].tolist()
            rows = zip(itertools.count(chunk.start), places.tolist(), listed, decoded, strict=False)
            yield sample_lines(
                (row, label, names[label], name_text(name), width, height, self._boxes.get(tail, ""), f"{digest:016x}")
                for row, tail, (name, label, _, _), (width, height, digest) in rows
            )

    def _reject_lines(self) -> Iterator[bytes]:
        found = [*self._listed, *(Reject(**carried) for carried in self._plan.content["carried"])]
        yield line(REJECT_COLUMNS)
        yield b"".join(map(reject_line, sorted(found, key=lambda r: (name_bytes(r.source), r.action, r.reason))))

    def _draft(self) -> Manifest:
        plan, manifest = self._plan, self._plan.content["manifest"]
        pixels = self._count * summed_lines(plan.recipe.height) * plan.recipe.width
        # Exact integers until the last step: n*sum(x^2) - sum(x)^2 would lose precision in floating point.
        variance = (pixels * self._squares - self._sums**2) / pixels**2
        return Manifest(
            count=self._count,
            shape=plan.recipe.shape,
            container=plan.recipe.container,
            block_rows=plan.blocks.block_rows,
            shards=(),
            classes=self._samples.classes,
            pixel_mean=tuple(self._sums / pixels),
            pixel_std=tuple(map(math.sqrt, variance)),
            recipe=manifest["recipe"],
            source=manifest["source"],
            columns=tuple(self._columns),
            files={},
            box_classes=None if (names := plan.content["box_classes"]) is None else tuple(names),
            decoder_crashes=self._crashes,
            paired=plan.recipe.paired,
            pixels=plan.recipe.pixels,
        )


def _rows_from(planned: int, without_pixels: list[int]) -> NDArray[np.int64]:
    """Return the planned row of each row of the store: rows from the end fill the holes, in ascending order."""
    gone = np.array(sorted(without_pixels), np.int64)
    rows = np.arange(planned - len(gone))
    rows[gone[gone < len(rows)]] = np.setdiff1d(np.arange(len(rows), planned), gone, assume_unique=True)
    return rows
