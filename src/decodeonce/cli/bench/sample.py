"""Draw a fair sample of a source, and measure how fast worker processes make rows of it with a build's decoder."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import Stopped
from decodeonce.prep.build.plan import Listing, row_order
from decodeonce.prep.entry import Entry, LeftOut, Undecodable, name_bytes, name_text
from decodeonce.prep.pixels.memory_limit import limited_memory
from decodeonce.prep.processes.child import Parent
from decodeonce.prep.processes.workers import run_workers
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source, open_source
from decodeonce.store.hashing import row_checksum

if TYPE_CHECKING:
    from decodeonce.prep.pixels.decode import Decoder

RUN_ROWS, RUNS = 16, 256
UNIT_ROWS = 256  # the most samples of a unit, which is read whole anyway
Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Consecutive samples of a plan. `unit_rows` is the size of the read unit that they start, or 0."""

    entries: Sequence[Entry]
    unit_rows: int = 0

    def order(self, seconds: float, part: str) -> dict[str, Any]:
        """Return the message that lets a worker process these samples for at most `seconds`."""
        entries = [{**asdict(entry), "name": name_text(entry.name)} for entry in self.entries]
        return {"entries": entries, "unit_rows": self.unit_rows, "seconds": seconds, "part": part}


def fair_runs(
    source: Source, listing: Listing, seed: int | None, *, rows: int = RUN_ROWS, most: int = RUNS
) -> list[Run]:
    """Choose runs that are evenly spaced through the plan, in random order, so that the first ones are fair as well.

    If a source can only read whole units, each run starts with a unit.
    """
    order = row_order(listing, seed, by_unit=bool(source.read_unit))
    if source.read_unit:
        firsts = np.append(0, np.flatnonzero(np.diff(listing.samples.rows["unit"][order])) + 1)
        picked = _evenly(len(firsts), most)
        starts, unit_rows = firsts[picked], np.diff(np.append(firsts, len(order)))[picked]
        ends = starts + np.minimum(unit_rows, UNIT_ROWS)
    else:
        starts = _evenly(len(order), min(most, -(-len(order) // rows)))
        ends, unit_rows = np.minimum(starts + rows, np.append(starts[1:], len(order))), np.zeros_like(starts)
    mixed = np.random.default_rng(0).permutation(len(starts))
    spans = [order[starts[i] : ends[i]] for i in mixed]
    entries = map(listing.samples.entry, np.concatenate(spans).tolist())
    return [
        Run(list(islice(entries, len(span))), rows) for span, rows in zip(spans, unit_rows[mixed].tolist(), strict=True)
    ]


def _evenly(count: int, most: int) -> Positions:
    """Return up to `most` evenly spaced numbers from 0 to count - 1."""
    few = min(count, most)
    return np.arange(few) * count // few


@dataclass
class Done:
    """Numbers of images, bytes and rejects, the first reject with its reason, and the seconds that each part took.

    `making` is decoding, resizing, cropping and packing; `decoding` is a second decoding alone.
    """

    images: int = 0
    bytes: int = 0
    rejects: int = 0
    first_reject: str = ""
    reading: float = 0.0
    making: float = 0.0
    decoding: float = 0.0

    def add(self, other: Done) -> None:
        """Add the numbers of `other`."""
        for name in ("images", "bytes", "rejects", "reading", "making", "decoding"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_reject = self.first_reject or other.first_reject


@dataclass
class Pace:
    """The runs that were started, and the totals of all processes and of each process by its id."""

    started: list[Run] = field(default_factory=list)
    total: Done = field(default_factory=Done)
    by_process: dict[int, Done] = field(default_factory=lambda: defaultdict(Done))

    def take(self, report: dict[str, Any]) -> None:
        """Add the report of a process about a run."""
        done = Done(**report["done"])
        self.total.add(done)
        self.by_process[report["process"]].add(done)

    @property
    def per_s(self) -> float:
        """Images/s per process, including reading."""
        return self.total.images / (self.total.reading + self.total.making)

    def rate_of(self, part: str) -> float:
        """Return images/s of all processes together for `part` alone ("reading" or "making")."""
        return float(sum(done.images / getattr(done, part) for done in self.by_process.values()))


def measure_pace(
    source: Source,
    recipe: Recipe,
    runs: Sequence[Run],
    *,
    workers: int,
    seconds: float,
    part: str = "make",
    again: bool = False,
) -> Pace:
    """Process runs with `workers` processes for about `seconds`.

    Args:
        part: "read"; "make": read and make rows; "decode": the same, then decode again to time decoding alone.
        again: Repeat the runs until the time is over, instead of processing each once.

    Raises:
        ChildDied: If an image crashes its decoder. Errors of reading are raised, too.
    """
    pace = Pace()
    task = {
        "kind": source.kind,
        "root": os.path.abspath(source.root),
        "facts": source.facts(),
        "recipe": recipe.facts({}),
        "classes": [cls.name for cls in source.classes()],
    }
    rounds = chain.from_iterable(runs for _ in (count() if again else range(1)))
    run_workers(__name__, min(workers, len(runs)), task, _orders(rounds, seconds, part, pace.started), pace.take)
    return pace


def _orders(runs: Iterable[Run], seconds: float, part: str, started: list[Run]) -> Iterator[dict[str, Any]]:
    """Yield runs until the time is over. It starts when a process asks for its first run."""
    until = time.monotonic() + seconds
    for run in runs:
        left = until - time.monotonic()
        if left <= 0 and started:
            return
        started.append(run)
        yield run.order(left, part)


def main(arguments: list[str]) -> int:
    """Process the runs that the parent sends, and report on each."""
    from decodeonce.prep.pixels.decode import Decoder
    from decodeonce.prep.sources.formats.tables import pyarrow

    with Parent(arguments) as parent:
        task = parent.receive()
        source = open_source(task["kind"], Path(task["root"]), task["facts"])
        if source.kind.startswith("parquet"):
            pyarrow()  # import it now, so that it does not count as reading the first image
        decoder = Decoder(Recipe.from_facts(task["recipe"]), task["classes"])
        with limited_memory():
            for order in parent.orders():
                parent.report({"process": os.getpid(), "done": asdict(_process(source, decoder, order))})
    return 0


def _process(source: Source, decoder: Decoder, order: dict[str, Any]) -> Done:
    """Process a run until its time is over. The time to read a unit's first sample is spread over the whole unit."""
    done, first_read = Done(), 0.0
    until = time.perf_counter() + order["seconds"]
    for facts in order["entries"]:
        boxes = tuple(tuple(box) for box in facts["boxes"])
        entry = Entry(**{**facts, "name": name_bytes(facts["name"]), "boxes": boxes})
        start, reject = time.perf_counter(), ""
        try:
            data = source.read(entry)
        except Undecodable as reason:
            data, reject = b"", f"{entry.text}: {reason}"
        read = made = time.perf_counter()
        if order["part"] != "read":
            reject = reject or _make(decoder, data, entry)
            made = time.perf_counter()
        if order["part"] == "decode" and not reject:
            decoder.decode(data)
            done.decoding += time.perf_counter() - made
        first_read = first_read or read - start
        done.add(Done(1, len(data), int(bool(reject)), reject, read - start, made - read))
        if made > until:
            break
    if order["unit_rows"]:
        done.reading += first_read * (done.images / order["unit_rows"] - 1)
    return done


def _make(decoder: Decoder, data: bytes, entry: Entry) -> str:
    """Make a row as a worker of a build does; return "" or the reason for a reject."""
    try:
        row_checksum(decoder.row(data, entry).pixels)
    except Undecodable as reason:
        return f"{entry.text}: {reason}"
    except LeftOut:
        pass
    except MemoryError:
        raise Stopped(f"{entry.text}: out of memory; run the same command again with more") from None
    return ""
