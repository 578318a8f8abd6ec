"""Whether an arm delivers what it should: each picture as often as the others, with its own label and its pixels."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

GRID = 8  # a thumbnail's side
NEAR = 8.0  # levels by which thumbnails of one picture may differ: other decoders, other filters


class Delivered:
    """What came in an epoch: labels, and of every picture a checksum, or a thumbnail where its pixels are not exact."""

    def __init__(self, shape: tuple[int, int, int], exact: bool) -> None:
        self.shape, self.exact = shape, exact
        self.labels: list[int] = []
        self.marks: list[Any] = []

    def add(self, images: Any, labels: Any) -> None:
        """One batch; ValueError where it is not uint8 (n, size, size, 3) in one piece."""
        pixels = np.asarray(images)
        if pixels.dtype != np.uint8 or pixels.shape[1:] != self.shape or not pixels.flags.c_contiguous:
            raise ValueError(f"a batch is {pixels.dtype} {pixels.shape}, expected uint8 (n, {self.shape}) in one piece")
        self.labels += np.asarray(labels).ravel().tolist()
        self.marks += [digest(row) if self.exact else thumbnail(row) for row in pixels]


class Saved(NamedTuple):
    """The same from a file: int64 (n,), and uint64 (n,) or float32 (n, 192)."""

    labels: NDArray[np.int64]
    marks: NDArray[Any]


def digest(row: NDArray[np.uint8]) -> int:
    """A checksum of its bytes; everyone's Python has it, and of those it is the fastest."""
    return zlib.crc32(row.data)


def thumbnail(row: NDArray[np.uint8]) -> NDArray[Any]:
    """Means of an 8x8 grid, (192,)."""
    size = row.shape[0] // GRID
    # Rows first, then columns: a mean over both at once takes fifteen times as long.
    lines = row[: size * GRID, : size * GRID].reshape(GRID, size, -1).sum(1, dtype=np.uint32)
    means: NDArray[Any] = lines.reshape(GRID, GRID, size, 3).sum(2).astype(np.float32) / size**2
    return means.ravel()


def save(got: Delivered, path: Path) -> None:
    """For the parent."""
    marks = np.array(got.marks, np.uint64 if got.exact else np.float32)
    np.savez(path, labels=np.array(got.labels, np.int64), marks=marks)


def load(path: Path) -> Saved:
    """What a child has saved."""
    with np.load(path) as file:
        return Saved(file["labels"], file["marks"])


def fault(got: Saved, expected: Saved, copies: int) -> str:
    """What is wrong with an epoch beside the right one, in which every picture comes once; "" where nothing is."""
    found = Counter(got.labels.tolist())
    right = Counter({label: copies * times for label, times in Counter(expected.labels.tolist()).items()})
    if found != right:
        label = min(label for label in found | right if found[label] != right[label])
        return f"label {label} came {found[label]} times in an epoch, expected {right[label]}"
    if expected.marks.dtype == np.uint64:
        pairs = Counter(zip(got.labels.tolist(), got.marks.tolist(), strict=True))
        once = Counter(zip(expected.labels.tolist(), expected.marks.tolist(), strict=True))
        wrong = (pairs - Counter({pair: copies * times for pair, times in once.items()})).total()
        return f"{wrong} of {len(got.labels)} pictures have other pixels or labels, or came too often" if wrong else ""
    wrong = sum(_unlike(got, expected, label, copies) for label in right)
    return f"{wrong} of {len(got.labels)} pictures are not like the one they should be" if wrong else ""


def _unlike(got: Saved, expected: Saved, label: int, copies: int) -> int:
    """How many of a class are like none, or like one that has come often enough."""
    wanted = expected.marks[expected.labels == label]
    left = np.full(len(wanted), copies)
    wrong = 0
    for mark in got.marks[got.labels == label]:
        distances = np.abs(wanted - mark).mean(1)
        nearest = int(distances.argmin())
        left[nearest] -= 1
        wrong += bool(distances[nearest] > NEAR or left[nearest] < 0)
    return wrong
