"""The worker process that decodes blocks, started by pool.py.

An order names a block and the rows known to kill decoders. A report says that a block is durable, and has its line for
the journal. The heartbeat holds the row that is being read or decoded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from decodeonce.errors import Stopped
from decodeonce.host import limited_memory
from decodeonce.prep.building.journal import FACTS, BlockRecord, PaletteColors, PixelSums, add_color, journal_line
from decodeonce.prep.building.plan import Block, Plan, read_plan, reject_error
from decodeonce.prep.listing import Entry, LeftOut, Row, Undecodable
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.processes.child import Heartbeat, Parent
from decodeonce.prep.sources.base import Source
from decodeonce.remote import is_url, take_over
from decodeonce.store.files import ShardFile, page_aligned_buffer
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import Json
from decodeonce.store.manifest import read_manifest
from decodeonce.store.writer import trim_shards

MOST_READS = 128  # at once: with 1.5 ms per image, enough for a latency of 80 ms and a repeated request
MOST_BYTES = 64 << 20  # of images that are read ahead; a larger image is read alone
ROWS_AHEAD = 512  # in which the next read unit is looked for: 1 s of decoding
Data = TypeVar("Data")
Read = tuple[Entry, Callable[[], list[bytes]]]  # the function returns the encoded bytes, as `Source.read`


class BlockDecoder:
    """Decodes the rows of a block into a buffer, and records the result for each row."""

    def __init__(self, plan: Plan, heartbeat: Heartbeat, *, fail_on_bad: bool) -> None:
        self._plan = plan
        self._source = plan.source()
        names = [cls.name for cls in plan.classes]
        self._maker = self._source.row_maker(plan.recipe) or Decoder(plan.recipe, names, self._source.label_of)
        self._heartbeat = heartbeat
        self._fail_on_bad = fail_on_bad

    def reads(self, entries: Iterable[Entry]) -> Iterator[Read]:
        """Yield the entries, each with the function that returns its encoded bytes."""
        source = self._source
        if is_url(source.root):
            return read_by_unit(source, entries) if source.unit_name else read_in_threads(source.read_checked, entries)
        return ((entry, partial(source.read_checked, entry)) for entry in entries)

    def decode(self, block: Block, poison: dict[int, str], buffer: memoryview, reads: Iterable[Read]) -> BlockRecord:
        """Fill `buffer` with the block's rows and return the block's record; the bytes of rejects stay unchanged.

        `poison` has the rows whose images kill their decoder, with the reason to reject them. `reads` is the block's
        part of what the method `reads` yields.
        """
        size, sums = self._plan.recipe.row_bytes, PixelSums(self._plan.recipe.shape, self._plan.recipe.pixels)
        facts, rejects, boxes, colors = np.zeros(block.rows, FACTS), [], [], PaletteColors()
        for index, (entry, read) in enumerate(reads):
            number = block.first + index
            try:
                row = self._row(number, entry, read, poison.get(number))
            except (Undecodable, LeftOut) as reason:
                self._heartbeat.idle()
                if isinstance(reason, Undecodable) and self._fail_on_bad:
                    raise reject_error(f"{entry.text}: {reason}") from None
                rejects.append((number, str(reason), "left out" if isinstance(reason, LeftOut) else "rejected"))
                continue
            self._heartbeat.idle()
            buffer[index * size : (index + 1) * size] = row.pixels
            checksum = row_checksum(row.pixels)
            sums.add(row.pixels, checksum)
            facts[index] = checksum, row.digest, row.width, row.height, row.turn
            if row.box:
                boxes.append((number, row.box))
            for index_of_mask, color in row.colors.items():
                add_color(colors, index_of_mask, color, number)
            if row.unusual:
                rejects.append((number, row.unusual, "kept"))
        crashes = sum(number in poison for number in range(block.first, block.last))
        late = self._source.late_facts()
        return BlockRecord(block.index, facts, rejects, boxes, *sums.by_channel(), crashes, late, colors)

    def _row(self, number: int, entry: Entry, read: Callable[[], list[bytes]], poison: str | None) -> Row:
        if poison:
            raise Undecodable(poison)
        try:
            self._heartbeat.start_reading(number)
            data, *paired = read()
            self._heartbeat.start_decoding(number)  # remains if the image kills this process, also by an exception
            return self._maker.row(data, entry, *paired)
        except MemoryError:
            raise Stopped(f"{entry.text}: out of memory; run the same command again with fewer --workers") from None


def read_in_threads(
    read: Callable[[Entry], Data], entries: Iterable[Entry]
) -> Iterator[tuple[Entry, Callable[[], Data]]]:
    """Read entries in threads, and yield them in their order.

    The latency decides how many are read at once: four times as many, each time that the decoder has to wait for one.
    """
    left, started, at_once, nbytes = iter(entries), deque[tuple[Entry, Future[Data]]](), 4, 0
    with ThreadPoolExecutor(MOST_READS, initializer=_yield_to_decoder) as threads:
        while True:
            while len(started) < at_once and nbytes < MOST_BYTES and (entry := next(left, None)) is not None:
                started.append((entry, threads.submit(read, entry)))
                nbytes += entry.size
            if not started:
                return
            entry, future = started.popleft()
            if not future.done() and len(started) + 1 == at_once:
                at_once = min(4 * at_once, MOST_READS)
            yield entry, future.result
            nbytes -= entry.size


def _yield_to_decoder() -> None:
    """Keep the calling thread from interrupting the decoder each time that data arrive, which would cost 10%."""
    with suppress(OSError):  # some sandboxes do not allow it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def read_by_unit(source: Source, entries: Iterable[Entry]) -> Iterator[Read]:
    """Yield the entries with their reads. The first read of a unit lets the source start to read the next one."""
    left, held = iter(entries), deque[Entry]()

    def read(entry: Entry, after: Entry) -> list[bytes]:
        data = source.read_checked(entry)
        if after.unit != entry.unit:
            source.read_soon(after)
        return data

    while True:
        while len(held) < ROWS_AHEAD and (not held or held[0].unit == held[-1].unit):
            if (entry := next(left, None)) is None:
                break
            held.append(entry)
        if not held:
            return
        yield held[0], partial(read, held[0], held[-1])
        held.popleft()


def write_block(plan: Plan, journal: Path, block: Block, record: BlockRecord, buffer: memoryview) -> Json:
    """Make a block durable; return the report for the parent, with the line that it then adds to the journal."""
    size, written, paths = plan.recipe.row_bytes, 0, plan.paths
    with ShardFile(plan.shard(block.shard)) as shard:
        # Another build may have replaced this one, and its shards have the same names. So this check, of a file whose
        # name is unique, follows after opening the shard.
        if not (paths.plan.exists() and journal.exists()):
            raise Stopped(f"{paths.root}: another process finished or removed the build")
        for first, last in runs_between(block, record.holes):
            start, end = (first - block.first) * size, (last - block.first) * size
            shard.write(buffer[start:end], block.offset + start)
            written += end - start
        shard.sync()
    if paths.manifest.exists():  # the store was finished meanwhile; this write may have grown a shard
        trim_shards(paths, read_manifest(paths.manifest))
        raise Stopped(f"{paths.root}: another process finished the build")
    rejects = plan.rejects_in([record])
    report = {"block": block.index, "rows": block.rows, "bytes": written, "rejects": len(rejects)}
    line = journal_line(record).decode()
    return {**report, "first_reject": str(rejects[0]) if rejects else "", "line": line}


def runs_between(block: Block, holes: list[int]) -> list[tuple[int, int]]:
    """Return the runs of rows [first, last) of a block between its holes."""
    edges = [block.first - 1, *holes, block.last]
    return [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]


def serve(parent: Parent, plan: Plan, decoder: BlockDecoder, journal: Path) -> None:
    """Decode the blocks that the parent orders. With two buffers, one block is written while the next is decoded."""
    buffers = [page_aligned_buffer(plan.blocks.block_rows * plan.recipe.row_bytes) for _ in range(2)]
    pending: Future[Json] | None = None
    orders = deque[Json]()  # several, if reads are ahead

    def entries() -> Iterator[Entry]:  # the first entry of a block asks the parent for its order
        for order in parent.orders():
            orders.append(order)
            block = plan.blocks[order["block"]]
            yield from plan.samples.entries(block.first, block.last)

    reads = decoder.reads(entries())
    with ThreadPoolExecutor(1) as flusher, limited_memory():
        try:
            for first in reads:
                order = orders.popleft()
                block = plan.blocks[order["block"]]
                poison = {int(row): reason for row, reason in order["poison"].items()}
                record = decoder.decode(block, poison, buffers[0], chain([first], islice(reads, block.rows - 1)))
                if pending is not None:
                    parent.report(pending.result())
                pending = flusher.submit(write_block, plan, journal, block, record, buffers[0])
                buffers.reverse()
        finally:  # also if the next block raises an error
            if pending is not None:
                parent.report(pending.result())


def main(arguments: list[str]) -> int:
    """Run the worker process."""
    with Parent(arguments) as parent:
        settings = parent.receive()
        take_over(settings.get("query", ""))
        # Absolute, because the user's code may change the current folder while a block is written.
        out, journal = (Path(os.path.abspath(settings[name])) for name in ("out", "journal"))
        plan = read_plan(BuildPaths(out))
        decoder = BlockDecoder(plan, parent.heartbeat, fail_on_bad=settings["on_bad"] == "fail")
        serve(parent, plan, decoder, journal)
    return 0
