"""Journals: what is done, a line a block, written after the block's data are durable.

A line is `block TAB round TAB time TAB JSON TAB digest`: the time is in seconds since 1970, by the clock of the node
that did the block, the digest the xxh3_64 of all before it. One process writes one journal and nobody else's, for
append is not atomic on NFS; a line that does not check is ignored. A journal's name begins with its task, `3of16-`, so
that a task reads only those that can hold blocks of its own share.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from decodeonce.errors import BuildError, add_path_to_errors
from decodeonce.store import disk
from decodeonce.store.durable import append, sync_folder
from decodeonce.store.hashing import hexdigest

# Neighbouring blocks stand in the journals of one task's workers, as many as a node has cores. Opening one anew
# for each record would cost a parallel file system a round trip or two every time.
OPEN_FILES = 256


@dataclass(frozen=True)
class BlockRecord:
    """What a journal says of one block; the lists by row have an entry for every planned row of the block.

    `checksums` and `digests` are 16 hexadecimal digits a row (of the row's bytes, of the source's), `sizes` width and
    height a row in pixels; zeros for rejects. `sums` and `squares` are per channel over the rows that were written,
    as PixelSums has them.
    `left_out` are rows that the user's map wanted none of; `turns` are EXIF orientations other than 1 that were
    applied, `boxes` what samples.tsv says of the rows that are boxes.
    """

    block: int
    checksums: str = ""
    digests: str = ""
    sizes: list[int] = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)
    left_out: list[tuple[int, str]] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    boxes: list[tuple[int, str]] = field(default_factory=list)
    oddities: list[tuple[int, str]] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)
    crashes: int = 0

    @property
    def holes(self) -> list[int]:
        """The planned rows of the block that have no pixels, ascending."""
        return sorted(row for row, _ in [*self.rejects, *self.left_out])


def journal_line(record: BlockRecord, round_: int, at: float) -> bytes:
    """The line of a record, written `at` seconds since 1970."""
    facts = json.dumps(asdict(record), separators=(",", ":")).encode()
    head = b"%d\t%d\t%.3f\t%s" % (record.block, round_, at, facts)
    return b"%s\t%s\n" % (head, hexdigest(head).encode())


def _parse(encoded: bytes, path: Path) -> BlockRecord:
    try:
        facts = json.loads(encoded.split(b"\t")[3])
        for name in ("rejects", "left_out", "oddities", "turns", "boxes"):
            facts[name] = [(row, said) for row, said in facts[name]]
        return BlockRecord(**facts)
    except (ValueError, TypeError, LookupError, RecursionError):
        again = "remove it and run the same command again: its blocks are done anew"
        raise BuildError(f"{path}: a record of another release; {again}") from None


LINE = re.compile(rb"([0-9]{1,18})\t([0-9]{1,18})\t(-?[0-9]{1,18}\.[0-9]{3})\t(.+)")
NAME = re.compile(r"([0-9]+)of([0-9]+)-(.+)-([0-9]{1,9})-[0-9a-f]+\.log")


@dataclass(frozen=True)
class Writer:
    """Who wrote a journal: process `pid` of task `task` of `tasks`, on node `host`."""

    task: int
    tasks: int
    host: str
    pid: int


class Journal:
    """This process's journal, for appending."""

    def __init__(self, folder: Path, task: int, tasks: int) -> None:
        self.path = folder / f"{task}of{tasks}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.log"
        self._fd = disk.open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        sync_folder(folder)

    def append(self, record: BlockRecord, round_: int) -> None:
        """Add a line and make it durable; after an OSError the journal must not be used again."""
        with add_path_to_errors(self.path):
            append(self._fd, journal_line(record, round_, time.time()))
            disk.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        disk.close(self._fd)


@dataclass(frozen=True, slots=True)
class Line:
    """Where a block's latest record stands, its digest, and when it was written."""

    path: Path
    offset: int
    length: int
    digest: str
    round: int
    time: float


class Journals:
    """The journals of a build as they are now: which blocks are done, and their records.

    `of` chooses, by the number of a task and of tasks, which journals are read.
    """

    def __init__(self, folder: Path, of: Callable[[int, int], bool] = lambda task, tasks: True) -> None:
        self._lines: dict[int, Line] = {}
        self._disputed: set[int] = set()
        self.writers: dict[Path, Writer] = {}
        for name in sorted(os.listdir(folder)):
            match = NAME.fullmatch(name)
            if match and of(int(match[1]), int(match[2])):
                self.writers[folder / name] = Writer(int(match[1]), int(match[2]), match[3], int(match[4]))
                self._scan(folder / name)

    def __contains__(self, block: object) -> bool:
        """Whether a block is done, and all journals agree on it."""
        return block in self._lines and block not in self._disputed

    def blocks(self) -> list[int]:
        """The blocks that are done, ascending."""
        return sorted(block for block in self._lines if block not in self._disputed)

    def round(self, block: int) -> int:
        """The round to do a block in: past all that the journals hold of it."""
        return self._lines[block].round + 1 if block in self._lines else 0

    def record(self, block: int) -> BlockRecord:
        """The record of a block that is done."""
        (record,) = self.records([block])
        return record

    def records(self, blocks: Iterable[int]) -> Iterator[BlockRecord]:
        """The records of blocks that are done, in the order asked for; few journals are open at a time."""
        files: dict[Path, int] = {}
        try:
            for line in map(self._lines.__getitem__, blocks):
                if line.path not in files:
                    if len(files) == OPEN_FILES:
                        disk.close(files.pop(next(iter(files))))
                    files[line.path] = os.open(line.path, os.O_RDONLY)
                yield _parse(os.pread(files[line.path], line.length, line.offset), line.path)
        finally:
            for fd in files.values():
                disk.close(fd)

    def times(self) -> Iterator[tuple[int, Path, float]]:
        """(block, journal, time) of the blocks that are done."""
        return ((block, self._lines[block].path, self._lines[block].time) for block in self.blocks())

    def _scan(self, path: Path) -> None:
        offset = 0
        with open(path, "rb") as file:
            for encoded in file:
                if not encoded.endswith(b"\n"):
                    break  # torn, or still being written
                head, _, digest = encoded.rpartition(b"\t")
                if digest == hexdigest(head).encode() + b"\n" and (match := LINE.fullmatch(head)):
                    block, round_, at, facts = match.groups()
                    line = Line(path, offset, len(encoded), hexdigest(facts), int(round_), float(at))
                    self._note(int(block), line)
                offset += len(encoded)

    def _note(self, block: int, line: Line) -> None:
        """Keep the record of the latest round; two different records of one round dispute each other."""
        known = self._lines.get(block)
        if known is None or line.round > known.round:
            self._lines[block] = line
            self._disputed.discard(block)
        elif line.round == known.round and line.digest != known.digest:
            self._disputed.add(block)
