"""What a Loader does in so many seconds: rates, its first batch, its memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from decodeonce.loader import Batch, Loader
from decodeonce.store import Store

MEMORY_SECONDS = 0.02  # between two looks at this process's memory
RING = 6  # batches that a Loader has under way


@dataclass(frozen=True)
class Share:
    """The rows of rank `rank` of `world_size` under partition="range": what a Loader can be kept to.

    `least` is the smallest number of rows that a rank has, of which batches can be no larger.
    """

    rank: int
    world_size: int
    rows: range
    least: int


def find_share(held: range, count: int, most_rows: int) -> Share:
    """A share of at most so many rows, at least one, that lies in the rows that are held; all of them if they fit."""
    world_size = -(-count // max(1, min(most_rows, count)))
    while True:
        rank = -(-held.start * world_size // count)
        rows = range(rank * count // world_size, (rank + 1) * count // world_size)
        if rows.stop <= held.stop and len(rows):
            return Share(rank, world_size, rows, count // world_size)
        world_size += 1


@dataclass(frozen=True)
class LoaderSettings:
    """How the Loader under test is made."""

    batch_size: int
    device: str
    reader: str
    threads: int | None


@dataclass(frozen=True)
class Epochs:
    """What came of it: bytes of pixels a second, seconds to the first batch, what its stats() and bottleneck() say."""

    bytes_per_s: float
    first_batch_s: float
    peak_anon_bytes: int
    slots: int
    reader: str
    why: str
    threads: int
    waits_for: str


def run_loader(
    store: Store | Path, how: LoaderSettings, share: Share, seconds: float = math.inf, *, epochs: int | None = None
) -> Epochs:
    """Take batches of shuffled epochs, at least one batch: for about so long, or until so many epochs are over.

    A path is opened within the time to the first batch. Without `epochs` the rate is that of a ring that is in use: the
    first touch of its memory may take longer than all else (here up to 1.6 s of a slot of 0.4 GB, then 0.02 s).
    """
    began = time.perf_counter()
    made = Loader(
        store,
        batch_size=min(how.batch_size, share.least),
        device=how.device,
        reader=how.reader,
        threads=how.threads,
        partition="range",
        rank=share.rank,
        world_size=share.world_size,
    )
    with made as loader:
        fresh = RING if epochs is None else 0
        first, peak, looked, taken = 0.0, anonymous_bytes(), 0.0, 0
        start = now = time.perf_counter()
        for number, batch in enumerate(_batches(loader, epochs)):
            now = time.perf_counter()
            first = first or now - began
            if now - looked > MEMORY_SECONDS:
                peak, looked = max(peak, anonymous_bytes()), now
            if number < fresh:
                start = now
                continue
            taken += batch.images.nbytes
            if now - start >= seconds:
                break
        stats = loader.stats()
        chosen = (stats["slots"], stats["reader"], stats["why"], stats["threads"], loader.bottleneck())
        return Epochs(taken / (now - start), first, peak, *chosen)


def _batches(loader: Loader, epochs: int | None) -> Iterator[Batch]:
    for _ in count() if epochs is None else range(epochs):
        yield from loader


def anonymous_bytes() -> int:
    """RssAnon of this process: pages of a mapped store are not in it. 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)
