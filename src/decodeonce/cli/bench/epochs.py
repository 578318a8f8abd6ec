"""Measure a Loader: its rate, the time to the first batch, its memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from decodeonce.loader import Batch, Loader
from decodeonce.loader.delivery import find_device, open_device
from decodeonce.loader.readers import ReaderName
from decodeonce.store import Store

MEMORY_SECONDS = 0.02  # between two readings of the memory of this process
WARM_UP_BATCHES = 6  # more than a Loader has slots, so that each slot was written once


@dataclass(frozen=True)
class Share:
    """The rows of a rank under partition="range", which limit a Loader to part of a store.

    `least` is the smallest number of rows of any rank; batches cannot be larger.
    """

    rank: int
    world_size: int
    rows: range
    least: int


def find_share(held: range, count: int, most_rows: int) -> Share:
    """Find a share of 1 to `most_rows` rows within the held rows; all of them if they are few enough."""
    world_size = -(-count // max(1, min(most_rows, count)))
    while True:
        rank = -(-held.start * world_size // count)
        rows = range(rank * count // world_size, (rank + 1) * count // world_size)
        if rows.stop <= held.stop and len(rows):
            return Share(rank, world_size, rows, count // world_size)
        world_size += 1


@dataclass(frozen=True)
class LoaderSettings:
    """Settings of the Loader under test."""

    batch_size: int
    device: str
    reader: ReaderName
    threads: int | None


@dataclass(frozen=True)
class Epochs:
    """Measured epochs.

    Attributes:
        bytes_per_s: Bytes of pixels per second.
        first_batch_s: Seconds to the first batch.
        peak_anon_bytes: The most anonymous memory that this process had.
        stats: The Loader's stats().
        waits_for: The Loader's bottleneck().
    """

    bytes_per_s: float
    first_batch_s: float
    peak_anon_bytes: int
    stats: dict[str, Any]
    waits_for: str


def open_loader(store: Store | Path, how: LoaderSettings, share: Share) -> Loader:
    """Return a Loader of the rows of a share."""
    return Loader(
        store,
        batch_size=min(how.batch_size, share.least),
        device=how.device,
        reader=how.reader,
        threads=how.threads,
        partition="range",
        rank=share.rank,
        world_size=share.world_size,
    )


def run_loader(
    store: Store | Path, how: LoaderSettings, share: Share, seconds: float = math.inf, *, epochs: int | None = None
) -> Epochs:
    """Take at least one batch of shuffled epochs, for about `seconds` or for `epochs` epochs.

    The time to the first batch ends when it is on the device. If `store` is a path, opening the store counts as well.
    Without `epochs`, the rate excludes the first batches, because the first write to new memory can take longest: 1.6 s
    for a slot of 0.4 GB, then 0.02 s.
    """
    device, began = open_device(find_device(how.device)), time.perf_counter()
    with open_loader(store, how, share) as loader:
        skipped = WARM_UP_BATCHES if epochs is None else 0
        first, peak, looked, taken = 0.0, anonymous_bytes(), 0.0, 0
        start = now = time.perf_counter()
        for number, batch in enumerate(_batches(loader, epochs)):
            if not number:
                device.record().synchronize()
            now = time.perf_counter()
            first = first or now - began
            if now - looked > MEMORY_SECONDS:
                peak, looked = max(peak, anonymous_bytes()), now
            if number < skipped:
                start = now
                continue
            taken += batch.images.nbytes
            if now - start >= seconds:
                break
        return Epochs(taken / (now - start), first, peak, loader.stats(), loader.bottleneck())


def _batches(loader: Loader, epochs: int | None) -> Iterator[Batch]:
    for _ in count() if epochs is None else range(epochs):
        yield from loader


def anonymous_bytes() -> int:
    """Return RssAnon of this process, which excludes the pages of a mapped store."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
