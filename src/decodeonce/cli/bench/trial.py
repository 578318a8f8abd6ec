"""Trial writes in a scratch folder: blocks alone, then a real build of some images without the finish step."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from decodeonce.prep.build import Progress, Work, make_plan, work
from decodeonce.prep.entry import Entry
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source
from decodeonce.store import disk
from decodeonce.store.durable import make_folder, remove_file, remove_tree
from decodeonce.store.manifest import ImageClass
from decodeonce.store.shard_file import ShardFile, page_aligned_buffer

WRITERS = 8  # the most
BLOCKS_PER_WORKER = 4  # or more: the rate is measured from the end of the first block to the end of the last

_made: list[Path] = []


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Create a folder `.prep-bench-…` in `parent`, and remove it at the end or after any signal but SIGKILL."""
    folder = parent / f".prep-bench-{os.getpid()}-{secrets.token_hex(4)}"
    _made.append(folder)
    try:
        make_folder(folder)
        yield folder
    finally:
        remove_tree(folder)
        _made.remove(folder)


def remove_scratch() -> None:
    """Remove the scratch folders. The signal handler calls this before it ends the process."""
    for folder in _made:
        with suppress(OSError):
            remove_tree(folder)


def write_rate(folder: Path, block_bytes: int, most_bytes: int, *, writers: int, seconds: float) -> float:
    """Write and flush blocks to a scratch file with several threads for about `seconds`; return bytes/s."""
    path, writers = folder / "writes", min(writers, WRITERS)
    blocks = max(1, most_bytes // block_bytes // writers)  # per writer
    block = page_aligned_buffer(block_bytes)
    block[:] = os.urandom(block_bytes)  # compressing file systems would write zeros faster than images
    os.close(disk.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    with ShardFile(path) as shard:
        remove_file(path)  # the open file keeps its data, and its space is freed when this process ends
        start = time.perf_counter()

        def write(writer: int) -> int:
            written = 0
            for number in range(writer * blocks, (writer + 1) * blocks):
                shard.write(block, number * block_bytes)
                shard.sync()
                written += block_bytes
                if time.perf_counter() - start > seconds:
                    break
            return written

        with ThreadPoolExecutor(writers) as threads:
            return sum(threads.map(write, range(writers))) / (time.perf_counter() - start)


class SampledSource(Source):
    """A source with the given samples of another source, repeated up to `rows` samples, in blocks of `block_rows`."""

    def __init__(self, source: Source, entries: Sequence[Entry], rows: int, block_rows: int) -> None:
        super().__init__(source.root)
        self.kind, self.read_unit = source.kind, source.read_unit
        self._source, self._entries, self._rows, self._block_rows = source, entries, rows, block_rows

    @property
    def top(self) -> Path:
        return self._source.top

    def facts(self) -> dict[str, Any]:
        return self._source.facts()

    def classes(self) -> tuple[ImageClass, ...]:
        return self._source.classes()

    def entries(self) -> Iterator[Entry]:
        return islice(cycle(self._entries), self._rows)

    def read(self, entry: Entry) -> bytes:
        return self._source.read(entry)

    def block_rows(self, count: int, row_bytes: int) -> int:
        return self._block_rows


def trial_rate(
    source: Source, entries: Sequence[Entry], recipe: Recipe, folder: Path, *, rows: int, block_rows: int, workers: int
) -> float | None:
    """Build `rows` samples into `folder`; return images/s, or None if there were too few blocks to measure."""
    block_rows = max(1, min(block_rows, rows // (BLOCKS_PER_WORKER * workers)))
    marks: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        if progress.new_rows and (not marks or progress.new_rows != marks[-1][1]):
            marks.append((time.perf_counter(), progress.new_rows))

    make_plan(SampledSource(source, entries, rows, block_rows), folder, recipe)
    work(folder, Work(workers=workers, max_bad="100%"), note)
    (first, before), (last, after) = marks[0], marks[-1]
    return (after - before) / (last - first) if last > first else None
