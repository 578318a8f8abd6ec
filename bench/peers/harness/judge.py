"""Check that an arm delivers each image equally often, with its own label and the right pixels."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Kind = Literal["exact", "about", "stretched", "augmented"]

GRID = 8  # side of a thumbnail
TOLERANCE = 8.0  # mean difference in levels allowed between thumbnails of one image from other decoders or filters


class Delivered:
    """Labels and marks of the images of an epoch.

    The mark of an image is a checksum if it must be exact, and a thumbnail if it must be similar. Augmented images have
    no marks, because their pixels are random. They must be float32 with a mean of about 0. Other images must be uint8,
    or with `unit_range` float32 between 0 and 1.
    """

    def __init__(self, size: int, kind: Kind, *, unit_range: bool = False) -> None:
        self.shape, self.kind, self.unit_range = (size, size, 3), kind, unit_range
        self.labels: list[int] = []
        self.marks: list[Any] = []

    def add(self, images: Any, labels: Any) -> None:
        """Add one batch.

        Raises:
            ValueError: If its type is another, or its shape is not (n, size, size, 3) or (n, 3, size, size).
        """
        pixels = np.asarray(images)
        dtype = np.float32 if self.kind == "augmented" or self.unit_range else np.uint8
        if pixels.dtype != dtype or pixels.shape[1:] not in (self.shape, self.shape[::-1]):
            raise ValueError(f"a batch is {pixels.dtype} {pixels.shape}, expected {dtype.__name__} (n, {self.shape})")
        self.labels += np.asarray(labels).ravel().tolist()
        if self.kind == "augmented":
            if not abs(float(pixels.mean())) < 3:
                raise ValueError(f"the mean of a batch is {pixels.mean()}, expected about 0 after normalization")
            return
        if not pixels.flags.c_contiguous:
            raise ValueError("a batch is not contiguous in memory")
        if self.unit_range:
            pixels = np.rint(pixels * 255).astype(np.uint8)
        pixels = pixels if pixels.shape[1:] == self.shape else np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        self.marks += [digest(row) if self.kind == "exact" else thumbnail(row) for row in pixels]


class Saved(NamedTuple):
    """Labels, int64 (n,), and marks, uint64 (n,) or float32 (n, 192), loaded from a file. Augmented: no marks."""

    labels: NDArray[np.int64]
    marks: NDArray[Any]


def digest(row: NDArray[np.uint8]) -> int:
    """Return a checksum of the bytes, with the fastest function that the Python of every peer has."""
    return zlib.crc32(row.data)


def thumbnail(row: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the means of an 8x8 grid, float32 (192,)."""
    size = row.shape[0] // GRID
    # Sum lines first, then columns: a mean over both at once takes fifteen times as long.
    lines = row[: size * GRID, : size * GRID].reshape(GRID, size, -1).sum(1, dtype=np.uint32)
    means: NDArray[Any] = lines.reshape(GRID, GRID, size, 3).sum(2).astype(np.float32) / size**2
    return means.ravel()


def save(got: Delivered, path: Path) -> None:
    """Write labels and marks to a file for the parent process."""
    marks = np.array(got.marks, np.uint64 if got.kind == "exact" else np.float32)
    np.savez(path, labels=np.array(got.labels, np.int64), marks=marks)


def load(path: Path) -> Saved:
    """Load what a child process has saved."""
    with np.load(path) as file:
        return Saved(file["labels"], file["marks"])


def find_fault(got: Saved, expected: Saved, copies: int) -> str:
    """Compare an epoch with the expected one, where each image comes once; return what is wrong, "" if nothing is."""
    found = Counter(got.labels.tolist())
    right = Counter({label: copies * times for label, times in Counter(expected.labels.tolist()).items()})
    if found != right:
        label = min(label for label in found | right if found[label] != right[label])
        return f"label {label} came {found[label]} times in an epoch, expected {right[label]}"
    if not len(got.marks):
        return ""
    if expected.marks.dtype == np.uint64:
        pairs = Counter(zip(got.labels.tolist(), got.marks.tolist(), strict=True))
        once = Counter(zip(expected.labels.tolist(), expected.marks.tolist(), strict=True))
        wrong = (pairs - Counter({pair: copies * times for pair, times in once.items()})).total()
        return f"{wrong} of {len(got.labels)} images have wrong pixels or labels, or came too often" if wrong else ""
    wrong = sum(_count_unmatched(got, expected, label, copies) for label in right)
    return f"{wrong} of {len(got.labels)} images are not similar to a remaining expected image" if wrong else ""


def _count_unmatched(got: Saved, expected: Saved, label: int, copies: int) -> int:
    """Return how many images of a class are not similar to any expected image that remains.

    Each image is matched with the most similar expected image, which can be matched `copies` times. So a tree may
    contain the same image several times.
    """
    wanted = expected.marks[expected.labels == label]
    remaining = np.full(len(wanted), copies)
    unmatched = 0
    for mark in got.marks[got.labels == label]:
        distances = np.where(remaining > 0, np.abs(wanted - mark).mean(1), np.inf)
        nearest = int(distances.argmin())
        similar = bool(distances[nearest] <= TOLERANCE)
        remaining[nearest] -= similar
        unmatched += not similar
    return unmatched
