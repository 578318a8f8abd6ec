"""The plan: which sample goes to which row. It does not change once decoding starts.

The files of a plan are in OUT/.build, all in row order:

- plan-rows.npy: one record per row.
- plan-names.bin: the names of the samples, concatenated.
- plan-boxes.npy: the boxes of each row, if the recipe has boxes.
- plan-box-labels.npy: the labels of the boxes, if boxes are kept.
- plan-column-0.npy and so on: one file per numeric column.
- plan.json: written last; the plan exists once this file does.

Arrays are memory-mapped, so that a task reads only its own rows.
"""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError, Stopped, StoreError
from decodeonce.formatting import quoted
from decodeonce.prep.build.blocks import Blocks
from decodeonce.prep.build.row_order import row_order
from decodeonce.prep.build.scan import Listing, boxes_of
from decodeonce.prep.entry import Entry
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source, open_source
from decodeonce.store import Column, ImageClass, Reject, StorePaths
from decodeonce.store.durable import write_atomic
from decodeonce.store.layout import missing_advice
from decodeonce.store.regular_files import REPLACED
from decodeonce.store.signed import canonical, digest_of
from decodeonce.store.table import REJECT_COLUMNS, line, read_rejects, reject_line
from decodeonce.store.writer import write_array

PLAN_VERSION = 4
ROW = np.dtype(
    [
        ("label", "<i4"),
        ("name_bytes", "<i4"),
        ("name_start", "<i8"),
        ("size", "<i8"),
        ("mtime_ns", "<i8"),
        ("unit", "<i4"),
        ("place", "<i8"),
    ]
)
CHUNK = 1 << 13


@dataclass(frozen=True)
class Plan:
    """A plan, read from OUT/.build.

    Args:
        paths: The paths of the store.
        facts: The content of plan.json.
    """

    paths: StorePaths
    facts: dict[str, Any]

    @property
    def count(self) -> int:
        """Number of planned rows, before rejects are removed."""
        return int(self.facts["count"])

    @property
    def candidates(self) -> int:
        """Number of samples that the source listed, plan-time rejects included."""
        return int(self.facts["candidates"])

    @property
    def rejected(self) -> int:
        """Number of samples that were rejected when the plan was made."""
        return self.candidates - self.count

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, without the decoders."""
        return Recipe.from_facts(self.facts["recipe"])

    @cached_property
    def blocks(self) -> Blocks:
        """How the planned rows are divided into blocks and shards."""
        return Blocks(self.count, self.recipe.row_bytes, self.facts["block_rows"], self.facts["shard_rows"])

    @cached_property
    def classes(self) -> tuple[ImageClass, ...]:
        """The classes in label order."""
        return tuple(ImageClass(**fact) for fact in self.facts["classes"])

    @cached_property
    def rejects(self) -> list[Reject]:
        """The samples that were rejected when the plan was made."""
        try:
            rejects = list(read_rejects(self.paths.plan_rejects))
        except StoreError:
            rejects = []
        if [reject.action for reject in rejects] != ["rejected"] * self.rejected:  # the last field shows a cut line
            raise self._damaged(self.paths.plan_rejects)
        return rejects

    @cached_property
    def rows(self) -> NDArray[np.void]:
        """One record of dtype ROW per planned row, memory-mapped."""
        return self._mapped(self.paths.plan_rows)

    @cached_property
    def boxes(self) -> NDArray[np.float64]:
        """The boxes of each planned row, (count, K, 4) float64, NaN for missing ones; empty without boxes."""
        if not self.recipe.boxes_per_row:
            return np.empty((0, 0, 4))
        return self._mapped(self.paths.plan_boxes)

    @cached_property
    def box_labels(self) -> NDArray[np.int32]:
        """The labels of the kept boxes of each planned row, (count, K) int32; -1 for missing ones."""
        return self._mapped(self.paths.plan_box_labels)

    @cached_property
    def columns(self) -> list[Column]:
        """The numeric columns of the source."""
        return [Column(**{**facts, "shape": tuple(facts["shape"])}) for facts in self.facts["columns"]]

    def column_values(self, number: int) -> NDArray[Any]:
        """Return the values of one column, (count, ...), memory-mapped."""
        return self._mapped(self.paths.plan_column(number))

    def _mapped(self, path: Path) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        except ValueError:  # its text would quote the file's content
            raise self._damaged(path) from None
        if len(array) != self.count:
            raise self._damaged(path)
        return array

    @cached_property
    def _names(self) -> NDArray[np.uint8]:
        last = self.rows[-1]
        nbytes = int(last["name_start"]) + int(last["name_bytes"])
        if self.paths.plan_names.stat().st_size != nbytes:
            raise self._damaged(self.paths.plan_names)
        # All names may be empty, and an empty file cannot be mapped.
        return np.memmap(self.paths.plan_names, np.uint8, "r") if nbytes else np.empty(0, np.uint8)

    def _damaged(self, path: Path) -> BuildError:
        return BuildError(f"{path}: damaged; remove {quoted(str(self.paths.root))} and build again")

    def entry(self, row: int) -> Entry:
        """Return the sample planned for a row."""
        return self.entries(row, row + 1)[0]

    def entries(self, first: int, last: int) -> list[Entry]:
        """Return the samples planned for the rows [first, last)."""
        places = self.rows[first:last][["unit", "place"]].tolist()
        boxes = [boxes_of(held) for held in self.boxes[first:last].tolist()] if len(self.boxes) else [()] * len(places)
        return [
            Entry(*values, unit=unit, place=place, boxes=held)
            for values, (unit, place), held in zip(self.values(first, last), places, boxes, strict=True)
        ]

    def values(self, first: int, last: int) -> list[tuple[bytes, int, int, int]]:
        """Return (name, label, size, mtime_ns) for rows [first, last): faster than `entries` for millions of rows."""
        records = self.rows[first:last].tolist()
        start, end = records[0][2], records[-1][2] + records[-1][1]
        names = self._names[start:end].tobytes()
        return [
            (names[at - start : at - start + length], label, size, mtime_ns)
            for label, length, at, size, mtime_ns, _, _ in records
        ]

    def source(self) -> Source:
        """Open the source that this plan was made from."""
        facts = self.facts["source"]
        return open_source(facts["kind"], Path(facts["root"]), facts["facts"])


def read_plan(paths: StorePaths) -> Plan:
    """Read the plan in OUT/.build; raise BuildError if it is missing or damaged."""
    try:
        encoded = paths.plan.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        advice = f"{missing_advice(paths.root)}run `prep plan` or `prep build` first"
        raise BuildError(f"{paths.root}: no plan here (no {paths.plan}); {advice}") from None
    try:
        facts = json.loads(encoded)
        intact, version = facts["digest"] == digest_of(facts), facts["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise BuildError(f"{paths.plan}: damaged; remove {paths.root} and build again")
    if version != PLAN_VERSION:
        found = f"plan version is {version!r}, expected {PLAN_VERSION}"
        advice = f"finish with the decodeonce release that made it, or remove {paths.root} and build again"
        raise BuildError(f"{paths.plan}: {found}; {advice}")
    return Plan(paths, facts)


def removed_error(error: OSError, out: Path) -> Stopped | None:
    """Return the error for a build that was removed or became unreachable during work; None for other errors."""
    hidden = missing_advice(out)
    if error.errno not in REPLACED or (StorePaths(out).plan.exists() and not hidden and error.errno != errno.ESTALE):
        return None
    what = f"{error.filename or out}: {error.strerror}"
    return Stopped(f"{what}; {hidden or 'another process removed it: '}run the same command again")


def plan_facts(source: Source, listing: Listing, recipe: Recipe, decoders: dict[str, str]) -> dict[str, Any]:
    """Return the content of plan.json, without its digest."""
    block_rows = source.block_rows(len(listing), recipe.row_bytes)
    blocks = Blocks.of(len(listing), recipe.row_bytes, recipe.shard_size, block_rows)
    return {
        "version": PLAN_VERSION,
        "count": len(listing),
        "candidates": listing.candidates,
        "block_rows": blocks.block_rows,
        "shard_rows": blocks.shard_rows,
        "columns": [asdict(column) for column, _ in listing.columns],
        "classes": [{"name": c.name, "description": c.description} for c in source.classes()],
        "recipe": recipe.facts(decoders),
        "manifest": {
            **({"box_classes": list(listing.box_classes)} if recipe.kept_boxes else {}),
            **source.manifest_facts(recipe.facts(decoders), listing.digest),
        },
        "source": {
            "kind": source.kind,
            "root": os.path.abspath(source.root),
            "facts": source.facts(),
            "stamp": source.stamp(),
            "read_unit": source.read_unit,
            "digest": listing.digest,
            "frozen": listing.frozen,
        },
    }


def write_plan(paths: StorePaths, listing: Listing, facts: dict[str, Any]) -> Plan:
    """Write the files of a plan, plan.json last."""
    seed, by_unit = facts["recipe"]["shuffle_seed"], bool(facts["source"]["read_unit"])
    order = row_order(listing, seed, by_unit=by_unit)
    write_atomic(paths.plan_names, _names_in_order(listing, order))
    write_atomic(paths.plan_rows, _rows_in_order(listing, order))
    if listing.boxes.size:
        _write_in_order(paths.plan_boxes, listing.boxes, order)
    if Recipe.from_facts(facts["recipe"]).kept_boxes:
        _write_in_order(paths.plan_box_labels, listing.box_labels, order)
    for number, (_, values) in enumerate(listing.columns):
        _write_in_order(paths.plan_column(number), values, order)
    write_atomic(paths.plan_rejects, [line(REJECT_COLUMNS), *map(reject_line, listing.rejects)])
    return write_facts(paths, facts)


def write_facts(paths: StorePaths, facts: dict[str, Any]) -> Plan:
    """Write plan.json, which makes the plan exist."""
    write_atomic(paths.plan, [canonical({**facts, "digest": digest_of(facts)})])
    return Plan(paths, facts)


def _write_in_order(path: Path, values: NDArray[Any], order: NDArray[np.int64]) -> None:
    parts = (values[order[first : first + CHUNK]] for first in range(0, len(order), CHUNK))
    write_array(path, values.shape, values.dtype, parts)


def _names_in_order(listing: Listing, order: NDArray[np.int64]) -> Iterator[bytes]:
    names = memoryview(listing.names)
    ends = listing.name_bytes.astype(np.int64)
    np.cumsum(ends, out=ends)
    for first in range(0, len(order), CHUNK):
        picked = order[first : first + CHUNK]
        lengths = listing.name_bytes[picked].tolist()
        yield b"".join(names[end - size : end] for end, size in zip(ends[picked].tolist(), lengths, strict=True))


def _rows_in_order(listing: Listing, order: NDArray[np.int64]) -> Iterator[bytes]:
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(ROW), "fortran_order": False, "shape": (len(order),)}
    np.lib.format.write_array_header_1_0(header, facts)
    yield header.getvalue()
    start = 0
    for first in range(0, len(order), CHUNK):
        picked = order[first : first + CHUNK]
        rows = np.empty(len(picked), ROW)
        rows["label"], rows["size"], rows["mtime_ns"] = (
            column[picked] for column in (listing.labels, listing.sizes, listing.mtimes_ns)
        )
        rows["unit"], rows["place"] = listing.units[picked], listing.places[picked]
        rows["name_bytes"] = listing.name_bytes[picked]
        ends = start + np.cumsum(rows["name_bytes"], dtype=np.int64)
        rows["name_start"] = ends - rows["name_bytes"]
        start = int(ends[-1])
        yield rows.tobytes()
