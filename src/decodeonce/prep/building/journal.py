"""Journals: the completed blocks of a build, one line per block, written after the block's data are durable.

A line is `block TAB time TAB JSON TAB digest`. The time is in seconds since 1970, by the clock of the node that decoded
the block. The digest is the xxh3_64 of everything before it; a line with a wrong digest is ignored.

Each process writes its own journal, because appending is not atomic on NFS. A journal's name begins with its task,
such as `3of16-`, so that a task reads only the journals that can hold blocks of its own share.

The record of a block also has the sums of its pixels, from which the mean and the standard deviation are computed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.listing import LateFacts
from decodeonce.store import disk
from decodeonce.store.files import add_path_to_errors, append, sync_folder
from decodeonce.store.format import CODECS
from decodeonce.store.hashing import hexdigest
from decodeonce.store.layout import PixelsName, image_bytes

# What a build records about a row. All zeros describe a row without pixels.
FACTS = np.dtype(
    [
        ("checksum", "<u8"),  # of the row's bytes
        ("digest", "<u8"),  # of the encoded image
        ("width", "<i4"),  # of the source image in pixels
        ("height", "<i4"),
        ("turn", "<i4"),  # EXIF orientation that was applied; 1 for none
    ]
)


# Up to two colors of each key of `Row.colors`, each with a planned row that has it. Two show that the palettes differ.
PaletteColors = dict[str, dict[str, int]]


@dataclass(frozen=True, eq=False)
class BlockRecord:
    """The record of one block.

    Attributes:
        block: Index of the block.
        facts: One record of dtype FACTS per planned row.
        rejects: (planned row, reason, action) of the images that rejects.tsv will list.
        boxes: (planned row, text for samples.tsv) of the rows that are boxes.
        sums: Sum of the pixel values per channel, as in PixelSums.
        squares: Sum of the squared pixel values per channel, as in PixelSums.
        crashes: Number of rows whose image killed its decoder.
        late: What was known only after the samples of the block were read.
        colors: Colors of the palettes of masks, each with the first planned row of the block that has it.
    """

    block: int
    facts: NDArray[np.void] = field(default_factory=lambda: np.empty(0, FACTS))
    rejects: list[tuple[int, str, str]] = field(default_factory=list)
    boxes: list[tuple[int, str]] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)
    crashes: int = 0
    late: list[LateFacts] = field(default_factory=list)
    colors: PaletteColors = field(default_factory=dict)

    @property
    def holes(self) -> list[int]:
        """The planned rows of the block without pixels, ascending."""
        return [row for row, _, action in self.rejects if action != "kept"]


# Sum at least this many lines of a row, or all if it has fewer. 32 lines of 256 pixels take 10 us; a histogram of the
# whole row takes 80 us or more. The mean of 32 lines of an ImageNet image differs from the full mean by 0.5 levels rms.
LEAST_LINES = 32


def line_step(height: int) -> int:
    """Return the distance between summed lines."""
    return max(1, height // LEAST_LINES)


def summed_lines(height: int) -> int:
    """Return how many lines of a row are summed."""
    return height // line_step(height)


class PixelSums:
    """Sums of the pixel values and of their squares over rows that hold images of `shape` (H, W, C) as `pixels` says.

    The row's checksum selects the lines, so the sums depend only on the rows.
    """

    def __init__(self, shape: tuple[int, int, int], pixels: PixelsName = "rgb") -> None:
        self._shape, self._bytes, self._unpack = shape, image_bytes(pixels, shape), CODECS[pixels].unpack
        self._height, width, self._channels = shape
        self._step, self._lines = line_step(self._height), summed_lines(self._height)
        self._sums, self._squares = np.zeros((2, width * self._channels))  # doubles: exact below 2**53

    def add(self, pixels: bytes, checksum: int) -> None:
        """Add a row."""
        image = np.frombuffer(pixels, np.uint8, self._bytes)  # without what is paired with it
        first = checksum % self._step
        lines = self._unpack(image, self._shape, slice(first, first + self._step * self._lines, self._step))
        # At most 63 lines, so squares add up to less than 2**24.
        values = lines.reshape(self._lines, -1).astype(np.float32)
        self._sums += values.sum(axis=0)
        self._squares += np.einsum("ij,ij->j", values, values)

    def by_channel(self) -> tuple[list[int], list[int]]:
        """Return the sums of the values of each channel, and those of their squares."""
        totals = (columns.reshape(-1, self._channels).sum(axis=0) for columns in (self._sums, self._squares))
        sums, squares = (list(map(int, each)) for each in totals)
        return sums, squares


def add_color(colors: PaletteColors, key: str, color: str, row: int) -> None:
    """Add a color of a planned row, unless it or two others are there."""
    if len(rows := colors.setdefault(key, {})) < 2:
        rows.setdefault(color, row)


def journal_line(record: BlockRecord, at: float | None = None) -> bytes:
    """Return the line of a record, written `at` seconds since 1970; None means now."""
    at = time.time() if at is None else at
    fields = {**vars(record), "facts": base64.b64encode(record.facts.tobytes()).decode()}
    head = b"%d\t%.3f\t%s" % (record.block, at, json.dumps(fields, separators=(",", ":")).encode())
    return b"%s\t%s\n" % (head, hexdigest(head).encode())


def _parse(encoded: bytes, path: Path) -> BlockRecord:
    try:
        fields = json.loads(encoded.split(b"\t")[2])
        fields["facts"] = np.frombuffer(base64.b64decode(fields["facts"], validate=True), FACTS)
        for name in ("rejects", "boxes", "late"):
            fields[name] = [tuple(listed) for listed in fields[name]]
        return BlockRecord(**fields)
    except (ValueError, TypeError, LookupError, RecursionError):
        advice = "remove this file and run the same command again to decode its blocks again"
        raise BuildError(f"{path}: has a record of another decodeonce release; {advice}") from None


LINE = re.compile(rb"([0-9]{1,18})\t(-?[0-9]{1,18}\.[0-9]{3})\t(.+)")
NAME = re.compile(r"([0-9]+)of([0-9]+)-(.+)-([0-9]{1,9})-[0-9a-f]+\.log")


@dataclass(frozen=True)
class Author:
    """The process that wrote a journal: `pid` on node `host`, for task `task` of `tasks`."""

    task: int
    tasks: int
    host: str
    pid: int


class Journal:
    """The journal that this process appends to."""

    def __init__(self, folder: Path, task: int, tasks: int) -> None:
        self.path = folder / f"{task}of{tasks}-{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}.log"
        self._fd = disk.open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        sync_folder(folder)

    def append(self, line: bytes) -> None:
        """Add a `journal_line` and make it durable. After an OSError, do not use the journal again."""
        with add_path_to_errors(self.path):
            append(self._fd, line)
            disk.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        disk.close(self._fd)


@dataclass(frozen=True, slots=True)
class JournalLine:
    """Position and time of a block's line, and the digest of its record."""

    path: Path
    offset: int
    length: int
    record_digest: str
    time: float


class Journals:
    """The current journals of a build: which blocks are done, and their records.

    Args:
        folder: The folder of the journals.
        of: Called with task and number of tasks; returns whether to read that task's journals. Default: all.

    Attributes:
        lines: The lines of the blocks that are done, in the order of the journals.
        authors: The processes that wrote the journals.

    Raises:
        BuildError: Two processes decoded a block differently, so its checksums may not match its rows. Or the
            process that plans has not reserved the shards yet.
    """

    def __init__(self, folder: Path, of: Callable[[int, int], bool] = lambda task, tasks: True) -> None:
        self.lines: dict[int, JournalLine] = {}
        self.authors: dict[Path, Author] = {}
        if not folder.is_dir():
            advice = "unless `prep plan` or `prep build` is still running, run it again"
            raise BuildError(f"{folder}: missing, because the plan is not complete; {advice}")
        for name in sorted(os.listdir(folder)):
            match = NAME.fullmatch(name)
            if match and of(int(match[1]), int(match[2])):
                self.authors[folder / name] = Author(int(match[1]), int(match[2]), match[3], int(match[4]))
                self._scan(folder / name)

    def records(self, blocks: Container[int]) -> Iterator[BlockRecord]:
        """Yield the records of those of `blocks` that are done, in the order of the journals: each is opened once."""
        wanted = (line for block, line in self.lines.items() if block in blocks)
        for path, lines in groupby(wanted, attrgetter("path")):
            with open(path, "rb") as file:
                for line in lines:
                    yield _parse(os.pread(file.fileno(), line.length, line.offset), path)

    def _scan(self, path: Path) -> None:
        offset = 0
        with open(path, "rb") as file:
            for encoded in file:
                if not encoded.endswith(b"\n"):
                    break  # cut off, or still being written
                head, _, digest = encoded.rpartition(b"\t")
                if digest == hexdigest(head).encode() + b"\n" and (match := LINE.fullmatch(head)):
                    block, at, record = match.groups()
                    line = JournalLine(path, offset, len(encoded), hexdigest(record), float(at))
                    known = self.lines.setdefault(int(block), line)
                    if known.record_digest != line.record_digest:
                        what = f"{known.path} and {path}: two processes decoded block {int(block)} differently"
                        raise BuildError(f"{what}; remove both files and run the same command again")
                offset += len(encoded)
