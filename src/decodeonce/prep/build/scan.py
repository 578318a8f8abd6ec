"""Scan a source: list its samples once, and find those that cannot become rows."""

from __future__ import annotations

import logging
import math
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.prep.entry import Box, Entry
from decodeonce.prep.sources import Source
from decodeonce.prep.sources.formats.numbers import NumberColumn
from decodeonce.store import Column, Reject

COLUMNS = {"labels": "i", "sizes": "q", "mtimes_ns": "q", "units": "i", "places": "q", "name_bytes": "i"}


@dataclass(frozen=True)
class Listing:
    """A scanned source: one array per property of the samples, in the source's order, and the plan-time rejects.

    Attributes:
        labels, sizes, mtimes_ns, units, places: As in `Entry`, (samples,).
        boxes: (samples, K, 4) float64; NaN for missing boxes.
        box_labels: (samples, K) int32, indexes into `box_classes`; -1 for missing boxes.
        box_classes: Class names of the boxes, sorted.
        columns: The columns in the source's `column_names`, each with its values (samples, ...).
        name_bytes: Length of each name in bytes, (samples,).
        names: All names, concatenated.
        rejects: Samples that cannot become rows.
        digest: Covers class, size, name, boxes and values of every candidate, and whether it can become a row.
        frozen: Covers the same and the modification times and places.
    """

    labels: NDArray[np.int32]
    sizes: NDArray[np.int64]
    mtimes_ns: NDArray[np.int64]
    units: NDArray[np.int32]
    places: NDArray[np.int64]
    boxes: NDArray[np.float64]
    box_labels: NDArray[np.int32]
    box_classes: tuple[str, ...]
    columns: tuple[tuple[Column, NDArray[Any]], ...]
    name_bytes: NDArray[np.int32]
    names: bytearray
    rejects: tuple[Reject, ...]
    digest: str
    frozen: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def candidates(self) -> int:
        """Number of samples and plan-time rejects together: the total for --max-bad."""
        return len(self) + len(self.rejects)

    def entries(self, positions: NDArray[np.int64]) -> list[Entry]:
        """Return the samples at these positions of the source's order."""
        ends = np.cumsum(self.name_bytes, dtype=np.int64)[positions].tolist()
        starts = (ends - self.name_bytes[positions]).tolist()
        columns = (self.labels, self.sizes, self.mtimes_ns, self.units, self.places, self.boxes)
        picked = zip(*(column[positions].tolist() for column in columns), strict=True)
        return [
            Entry(bytes(self.names[start:end]), label, size, mtime_ns, unit=unit, place=place, boxes=boxes_of(boxes))
            for start, end, (label, size, mtime_ns, unit, place, boxes) in zip(starts, ends, picked, strict=True)
        ]


def scan(source: Source, boxes: int = 0) -> Listing:
    """List a source once, and log its warnings.

    Memory per sample is 36 bytes, the name, 36 bytes for each of `boxes` boxes, and 8 bytes for each numeric value.
    """
    columns = {name: array(code) for name, code in COLUMNS.items()}
    names, rejects, held_boxes, no_boxes = bytearray(), [], array("d"), (math.nan,) * (4 * boxes)
    own = [NumberColumn(name) for name in source.column_names]
    held_numbers, seen_names = array("i"), dict[str, int]()
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
        for column, value in zip(own, entry.values, strict=True):
            column.append(value)
        if boxes:
            flat = [side for box in entry.boxes[:boxes] for side in box]
            held_boxes.extend([*flat, *no_boxes[len(flat) :]])
            numbers = [seen_names.setdefault(name, len(seen_names)) for name in entry.box_names[:boxes]]
            held_numbers.extend([*numbers, *[-1] * (boxes - len(numbers))])
    for doubt in source.doubts(len(columns["labels"])):
        logging.getLogger("decodeonce").warning("%s: %s", source.root, doubt)
    box_classes = tuple(sorted(seen_names))
    label_of = {name: label for label, name in enumerate(box_classes)}
    labels = np.array([*(label_of[name] for name in seen_names), -1], np.int32)  # the index -1 gives the label -1
    return Listing(
        **{name: np.frombuffer(column, column.typecode) for name, column in columns.items()},
        boxes=np.frombuffer(held_boxes, np.float64).reshape(len(columns["labels"]), boxes, 4),
        box_labels=labels[np.frombuffer(held_numbers, np.int32)].reshape(len(columns["labels"]), boxes),
        box_classes=box_classes,
        columns=tuple(column.to_column() for column in own),
        names=names,
        rejects=tuple(rejects),
        digest=digest.hexdigest(),
        frozen=frozen.hexdigest(),
    )


def _other_facts(entry: Entry) -> bytes:
    """Return the entry's boxes and values for the digest, or a mark if it has a problem.

    The problem's text is not part of the digest, because operating systems word errors differently.
    """
    if entry.problem:
        return b"\t!"
    boxes = [",".join(map(repr, box)) for box in entry.boxes] + [ascii(name) for name in entry.box_names]
    return "".join(f"\t{fact}" for fact in (*boxes, *entry.values)).encode()


def boxes_of(held: list[list[float]]) -> tuple[Box, ...]:
    """Return a sample's boxes without the missing ones, which are NaN."""
    return tuple((box[0], box[1], box[2], box[3]) for box in held if box[0] == box[0])  # NaN != NaN


def check_expected(source: Source, found: int, expect: int | None) -> None:
    """Raise BuildError unless a source lists the expected number of images."""
    if expect is not None and found != expect:
        what = f"{counted(found, 'image')} found in {counted(len(source.classes()), 'class', 'classes')}"
        raise BuildError(
            f"{source.root}: {what}, but --expect is {expect}; look for missing or new files (an unreachable file "
            "server hides its files), or pass the right number"
        )


def check_listing(source: Source, listing: Listing) -> None:
    """Raise BuildError if a source has no sample that can become a row."""
    if not len(listing):
        tried = f"; all {listing.candidates} candidates are rejects, first "
        why = f"{tried}{listing.rejects[0]}" if listing.rejects else ""
        raise BuildError(f"{source.root}: no images found{why}; read as {source.found}")
