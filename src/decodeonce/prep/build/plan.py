"""The plan: which sample goes to which row, frozen before a pixel is decoded.

`.build/plan-rows.npy` has a fixed record a row, `.build/plan-names.bin` their names end to end and, with boxes,
`.build/plan-boxes.npy` those of each row, all in row order and mapped, so that a task touches only its own rows;
`.build/plan.json` is written last.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import counted, quoted
from decodeonce.prep.build.blocks import Blocks
from decodeonce.prep.entry import Box, Entry
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source, open_source
from decodeonce.splitmix import GOLDEN, mix
from decodeonce.store import PictureClass, Reject, StorePaths
from decodeonce.store.files import REPLACED, write_atomic
from decodeonce.store.layout import missing_advice
from decodeonce.store.manifest import canonical, manifest_digest
from decodeonce.store.table import REJECT_COLUMNS, line, read_rejects, reject_line
from decodeonce.store.writer import write_array

PLAN_VERSION = 2
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
COLUMNS = {"labels": "i", "sizes": "q", "mtimes_ns": "q", "units": "i", "places": "q", "name_bytes": "i"}
CHUNK = 1 << 13


@dataclass(frozen=True)
class Listing:
    """A source as scanned: its samples in the source's order, a column each, names end to end; and plan-time rejects.

    `boxes` is (samples, K, 4) float64, NaN where a sample has fewer. `digest` covers class, size, name and boxes of
    every candidate, and whether it can be a row, `frozen` their mtimes and places, too.
    """

    labels: NDArray[np.int32]
    sizes: NDArray[np.int64]
    mtimes_ns: NDArray[np.int64]
    units: NDArray[np.int32]
    places: NDArray[np.int64]
    boxes: NDArray[np.float64]
    name_bytes: NDArray[np.int32]
    names: bytearray
    rejects: tuple[Reject, ...]
    digest: str
    frozen: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def candidates(self) -> int:
        """Samples and plan-time rejects together: what --max-bad counts against."""
        return len(self) + len(self.rejects)

    def entries(self, positions: NDArray[np.int64]) -> list[Entry]:
        """The samples at these positions of the source's order."""
        ends = np.cumsum(self.name_bytes, dtype=np.int64)[positions].tolist()
        starts = (ends - self.name_bytes[positions]).tolist()
        columns = (self.labels, self.sizes, self.mtimes_ns, self.units, self.places, self.boxes)
        picked = zip(*(column[positions].tolist() for column in columns), strict=True)
        return [
            Entry(bytes(self.names[start:end]), label, size, mtime_ns, unit=unit, place=place, boxes=_boxes(boxes))
            for start, end, (label, size, mtime_ns, unit, place, boxes) in zip(starts, ends, picked, strict=True)
        ]


def scan(source: Source, boxes: int = 0) -> Listing:
    """List a source once, and log its doubts: 36 bytes, a name and `boxes` boxes of 32 bytes a sample are held."""
    columns = {name: array(code) for name, code in COLUMNS.items()}
    names, rejects, held_boxes, no_boxes = bytearray(), [], array("d"), (math.nan,) * (4 * boxes)
    digest, frozen = xxhash.xxh3_64(), xxhash.xxh3_64()
    for entry in source.entries():
        fact = b"%d\t%d\t%s%s\n" % (entry.label, entry.size, entry.name, _other_facts(entry))
        digest.update(fact)
        frozen.update(b"%d\t%d\t%d\t%s" % (entry.mtime_ns, entry.unit, entry.place, fact))
        if entry.problem:
            rejects.append(Reject(entry.text, entry.problem, "rejected"))
            continue
        columns["labels"].append(entry.label)
        columns["sizes"].append(entry.size)
        columns["mtimes_ns"].append(entry.mtime_ns)
        columns["units"].append(entry.unit)
        columns["places"].append(entry.place)
        columns["name_bytes"].append(len(entry.name))
        names += entry.name
        if boxes:
            flat = [side for box in entry.boxes[:boxes] for side in box]
            held_boxes.extend([*flat, *no_boxes[len(flat) :]])
    for doubt in source.doubts(len(columns["labels"])):
        logging.getLogger("decodeonce").warning("%s: %s", source.root, doubt)
    return Listing(
        **{name: np.frombuffer(column, column.typecode) for name, column in columns.items()},
        boxes=np.frombuffer(held_boxes, np.float64).reshape(len(columns["labels"]), boxes, 4),
        names=names,
        rejects=tuple(rejects),
        digest=digest.hexdigest(),
        frozen=frozen.hexdigest(),
    )


def _other_facts(entry: Entry) -> bytes:
    """Its boxes, and that it can be no row; not why, for an error's words are a system's own."""
    return b"\t!" if entry.problem else "".join("\t" + ",".join(map(repr, box)) for box in entry.boxes).encode()


def shuffled(count: int, seed: int | None) -> NDArray[np.int64]:
    """The source positions in row order: sorted by a keyed hash, the same on every machine and numpy version.

    No two keys are equal, for the hash is a bijection, so any sorting algorithm gives the same. 16 bytes a sample.
    """
    if seed is None:
        return np.arange(count)
    start = np.uint64(xxhash.xxh3_64_intdigest(b"%d" % seed))
    keys = np.arange(count, dtype=np.uint64)
    for first in range(0, count, CHUNK):
        part = keys[first : first + CHUNK]
        part[:] = mix(part * np.uint64(GOLDEN) + start)
    return np.argsort(keys)


def row_order(listing: Listing, seed: int | None, *, by_unit: bool) -> NDArray[np.int64]:
    """The source positions in row order; by units, these are permuted whole and keep their own order inside."""
    if seed is None or not by_unit or not len(listing):
        return shuffled(len(listing), seed)
    ranks = np.argsort(shuffled(int(listing.units.max()) + 1, seed))
    return np.argsort(ranks[listing.units], kind="stable")


@dataclass(frozen=True)
class Plan:
    """A frozen plan, read from OUT/.build."""

    paths: StorePaths
    facts: dict[str, Any]

    @property
    def count(self) -> int:
        """Planned rows, before rejects are taken out."""
        return int(self.facts["count"])

    @property
    def candidates(self) -> int:
        """All that the source listed, plan-time rejects included."""
        return int(self.facts["candidates"])

    @property
    def rejected(self) -> int:
        """How many of them can be no row, as was seen when the plan was made."""
        return self.candidates - self.count

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, without the decoders."""
        return Recipe.from_facts(self.facts["recipe"])

    @cached_property
    def blocks(self) -> Blocks:
        """How the planned rows fall into blocks and shards."""
        return Blocks(self.count, self.recipe.row_bytes, self.facts["block_rows"], self.facts["shard_rows"])

    @cached_property
    def classes(self) -> tuple[PictureClass, ...]:
        """The classes in label order."""
        return tuple(PictureClass(**fact) for fact in self.facts["classes"])

    @cached_property
    def rejects(self) -> list[Reject]:
        """What the source listed and could be no row."""
        return list(read_rejects(self.paths.plan_rejects))

    @cached_property
    def rows(self) -> NDArray[np.void]:
        """One record (dtype ROW) a planned row, mapped."""
        return self._mapped(self.paths.plan_rows)

    @cached_property
    def boxes(self) -> NDArray[np.float64]:
        """(count, K, 4) float64, mapped: the boxes of each planned row, NaN where it has fewer; empty without boxes."""
        if not self.recipe.boxes_a_row:
            return np.empty((0, 0, 4))
        return self._mapped(self.paths.plan_boxes)

    def _mapped(self, path: Path) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        except ValueError:  # which quotes what is in the file
            raise BuildError(f"{path}: damaged; remove {quoted(str(self.paths.root))} and build again") from None
        return array

    @cached_property
    def _names(self) -> NDArray[np.uint8]:
        if not self.paths.plan_names.stat().st_size:  # rows of a store need no names, and nothing cannot be mapped
            return np.empty(0, np.uint8)
        return np.memmap(self.paths.plan_names, np.uint8, "r")

    def entry(self, row: int) -> Entry:
        """The sample planned for a row."""
        return self.entries(row, row + 1)[0]

    def entries(self, first: int, last: int) -> list[Entry]:
        """The samples planned for the rows [first, last)."""
        places = self.rows[first:last][["unit", "place"]].tolist()
        boxes = [_boxes(held) for held in self.boxes[first:last].tolist()] if len(self.boxes) else [()] * len(places)
        return [
            Entry(*values, unit=unit, place=place, boxes=held)
            for values, (unit, place), held in zip(self.values(first, last), places, boxes, strict=True)
        ]

    def values(self, first: int, last: int) -> list[tuple[bytes, int, int, int]]:
        """(name, label, size, mtime_ns) of these samples: what their entries hold, for who goes through millions."""
        records = self.rows[first:last].tolist()
        start, end = records[0][2], records[-1][2] + records[-1][1]
        names = self._names[start:end].tobytes()
        return [
            (names[at - start : at - start + length], label, size, mtime_ns)
            for label, length, at, size, mtime_ns, _, _ in records
        ]

    def source(self) -> Source:
        """The source this plan was made from."""
        facts = self.facts["source"]
        return open_source(facts["kind"], Path(facts["root"]), facts["facts"])


def _boxes(held: list[list[float]]) -> tuple[Box, ...]:
    return tuple((box[0], box[1], box[2], box[3]) for box in held if box[0] == box[0])  # NaN is not itself


def read_plan(paths: StorePaths) -> Plan:
    """The plan in OUT/.build; BuildError where there is none or it is not whole."""
    try:
        encoded = paths.plan.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        advice = f"{missing_advice(paths.root)}run `prep plan` or `prep build` first"
        raise BuildError(f"{paths.root}: no plan here (no {paths.plan}); {advice}") from None
    try:
        facts = json.loads(encoded)
        whole, version = facts["digest"] == manifest_digest(facts), facts["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise BuildError(f"{paths.plan}: damaged; remove {paths.root} and build again")
    if version != PLAN_VERSION:
        found = f"a plan of version {version!r}, this decodeonce goes on with {PLAN_VERSION}"
        raise BuildError(f"{paths.plan}: {found}; finish with the release that made it, or remove {paths.root}")
    return Plan(paths, facts)


def removed(error: OSError, out: Path) -> Stopped | None:
    """What a task says when its build was removed, or may be out of sight, while it worked; None for all else."""
    hidden = missing_advice(out)
    if error.errno not in REPLACED or (StorePaths(out).plan.exists() and not hidden and error.errno != errno.ESTALE):
        return None
    what = f"{error.filename or out}: {error.strerror}"
    return Stopped(f"{what}; {hidden or 'another process has removed it: '}run the same command again")


def check_expected(source: Source, found: int, expect: int | None) -> None:
    """Raise BuildError unless a source lists as many pictures as expected."""
    if expect is not None and found != expect:
        what = f"{counted(found, 'picture')} found in {counted(len(source.classes()), 'class', 'classes')}"
        raise BuildError(
            f"{source.root}: {what}, --expect says {expect}; look for what is missing or new (a file server that is "
            "away hides its files), or give the right number"
        )


def plan_facts(source: Source, listing: Listing, recipe: Recipe, decoders: dict[str, str]) -> dict[str, Any]:
    """What plan.json says, without its digest."""
    block_rows = source.block_rows(len(listing), recipe.row_bytes)
    blocks = Blocks.of(len(listing), recipe.row_bytes, recipe.shard_size, block_rows)
    return {
        "version": PLAN_VERSION,
        "count": len(listing),
        "candidates": listing.candidates,
        "block_rows": blocks.block_rows,
        "shard_rows": blocks.shard_rows,
        "classes": [{"name": c.name, "description": c.description} for c in source.classes()],
        "recipe": recipe.facts(decoders),
        "manifest": source.manifest_facts(recipe.facts(decoders), listing.digest),
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
    """Write the plan's files, plan.json last."""
    seed, by_unit = facts["recipe"]["shuffle_seed"], bool(facts["source"]["read_unit"])
    order = row_order(listing, seed, by_unit=by_unit)
    write_atomic(paths.plan_names, _names_in_order(listing, order))
    write_atomic(paths.plan_rows, _rows_in_order(listing, order))
    if listing.boxes.size:
        boxes = (listing.boxes[order[first : first + CHUNK]] for first in range(0, len(order), CHUNK))
        write_array(paths.plan_boxes, listing.boxes.shape, listing.boxes.dtype, boxes)
    write_atomic(paths.plan_rejects, [line(REJECT_COLUMNS), *map(reject_line, listing.rejects)])
    return write_facts(paths, facts)


def write_facts(paths: StorePaths, facts: dict[str, Any]) -> Plan:
    """Write plan.json, whose presence makes the rest a plan."""
    write_atomic(paths.plan, [canonical({**facts, "digest": manifest_digest(facts)})])
    return Plan(paths, facts)


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
