"""Check that an arm delivers each image as often as the others, with its own label and its pixels."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Kind = Literal["exact", "about", "augmented"]

GRID = 8  # a thumbnail's side
NEAR = 8.0  # levels by which thumbnails of one picture may differ: other decoders, other filters


class Delivered:
    """What came in an epoch: labels, and a mark of every image.

    The mark is a checksum of an exact image and a thumbnail of one that only has to be alike. Augmented images have
    none: nothing says what they should be, except float32 numbers of about unit variance.
    """

    def __init__(self, size: int, kind: Kind) -> None:
        self.shape, self.kind = (size, size, 3), kind
        self.labels: list[int] = []
        self.marks: list[Any] = []

    def add(self, images: Any, labels: Any) -> None:
        """Add one batch.

        Raises:
            ValueError: If it is not uint8, or float32 if augmented, of shape (n, size, size, 3) or (n, 3, size, size).
        """
        pixels = np.asarray(images)
        dtype = np.float32 if self.kind == "augmented" else np.uint8
        if pixels.dtype != dtype or pixels.shape[1:] not in (self.shape, self.shape[::-1]):
            raise ValueError(f"a batch is {pixels.dtype} {pixels.shape}, expected {dtype.__name__} (n, {self.shape})")
        self.labels += np.asarray(labels).ravel().tolist()
        if self.kind == "augmented":
            if not abs(float(pixels.mean())) < 3:
                raise ValueError(f"the mean of a batch is {pixels.mean()}, expected about 0 after normalization")
            return
        if not pixels.flags.c_contiguous:
            raise ValueError("a batch is not contiguous in memory")
        pixels = pixels if pixels.shape[1:] == self.shape else np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        self.marks += [digest(row) if self.kind == "exact" else thumbnail(row) for row in pixels]


class Saved(NamedTuple):
    """The same from a file: int64 (n,), and uint64 (n,) or float32 (n, 192); no marks of augmented images."""

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
    marks = np.array(got.marks, np.uint64 if got.kind == "exact" else np.float32)
    np.savez(path, labels=np.array(got.labels, np.int64), marks=marks)


def load(path: Path) -> Saved:
    """What a child has saved."""
    with np.load(path) as file:
        return Saved(file["labels"], file["marks"])


def fault(got: Saved, expected: Saved, copies: int) -> str:
    """What is wrong with an epoch compared with the right one, in which every image comes once; "" for nothing."""
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
        return f"{wrong} of {len(got.labels)} images have other pixels or labels, or came too often" if wrong else ""
    wrong = sum(_unlike(got, expected, label, copies) for label in right)
    return f"{wrong} of {len(got.labels)} images are not like any that is still due" if wrong else ""


def _unlike(got: Saved, expected: Saved, label: int, copies: int) -> int:
    """How many images of a class are like none that is still due.

    Each takes the nearest of those that are due, so that a tree may have the same image several times.
    """
    wanted = expected.marks[expected.labels == label]
    due = np.full(len(wanted), copies)
    wrong = 0
    for mark in got.marks[got.labels == label]:
        distances = np.where(due > 0, np.abs(wanted - mark).mean(1), np.inf)
        nearest = int(distances.argmin())
        alike = bool(distances[nearest] <= NEAR)
        due[nearest] -= alike
        wrong += not alike
    return wrong
