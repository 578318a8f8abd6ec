"""`prep bench load`: how fast a store's rows come, cold and warm, beside what bounds them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from decodeonce.cli.bench.copying import Copies
from decodeonce.cli.bench.epochs import RING, Epochs, LoaderSettings, Share, find_share, run_loader
from decodeonce.cli.bench.pages import Place, make_cold
from decodeonce.cli.bench.reads import (
    RANDOM_THREADS,
    THREADS,
    Reads,
    random_rows,
    rows_in_order,
)
from decodeonce.cli.bench.transfer import transfer_rate
from decodeonce.cli.bench.verdicts import load_verdict
from decodeonce.formatting import size_text
from decodeonce.host import available_memory
from decodeonce.loader.ahead import AHEAD_BYTES
from decodeonce.loader.device import find_device
from decodeonce.loader.shards import ShardFiles
from decodeonce.store import open_store

WARM_BYTES = 1 << 30  # of rows that warm figures are taken from, at most
PLACES = 64  # that are looked at to see whether pages were dropped


@dataclass(frozen=True)
class Cold:
    """Bytes a second of rows that were not in memory; `why` is why there are no such figures."""

    random: float | None = None
    in_order: float | None = None
    loader: Epochs | None = None
    why: str = ""


@dataclass(frozen=True)
class Warm:
    """Bytes a second of rows in memory; `host` is that of batches that stay on the host."""

    random: float
    in_order: float
    loader: Epochs
    host: Epochs


class LoadBench:
    """One store and one way to load it; each probe takes about `seconds`."""

    def __init__(self, path: Path, how: LoaderSettings, seconds: float) -> None:
        self.path, self.store = path, open_store(path)
        self.row_bytes = self.store.manifest.row_bytes
        self.memory = available_memory()
        self.device = find_device(how.device)
        self._all = find_share(self.store.rows, len(self.store), len(self.store))
        self.how = replace(how, batch_size=min(how.batch_size, self._all.least))
        self._seconds = seconds

    @property
    def bytes(self) -> int:
        """Of the rows that are here."""
        return len(self.store.rows) * self.row_bytes

    @property
    def batch_bytes(self) -> int:
        """Of a batch's pixels."""
        return self.how.batch_size * self.row_bytes

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.how.batch_size, *self.store.manifest.shape)

    @property
    def fits(self) -> bool:
        """Whether memory holds all rows."""
        return self.memory is None or self.bytes <= self.memory

    def cold(self) -> Cold:
        """Reads, each time after the store's pages were dropped."""
        run_loader(self.path, replace(self.how, batch_size=1), self._all, 0.0)  # torch's first calls take long
        if why := self._drop():
            return Cold(why=why)
        random = self._read(random=True, rows=self.store.rows, threads=RANDOM_THREADS)
        in_order = None if self._drop() else self._read(random=False, rows=self.store.rows)
        needed = RING * self.batch_bytes + 2 * AHEAD_BYTES
        slow = random * self._seconds < min(needed, self.bytes)  # it would still be at its first batches
        if slow or self._drop():
            return Cold(random, in_order)
        return Cold(random, in_order, run_loader(self.path, self.how, self._all, 2 * self._seconds, epochs=1))

    def warm(self, cold_rate: float | None) -> Warm:
        """The same of as many rows as can be brought into memory in a few seconds."""
        share = self._warm_share(cold_rate)
        self._read(random=False, rows=share.rows, seconds=4 * self._seconds)
        run_loader(self.store, self.how, share, epochs=1)  # which maps the shards
        loader = run_loader(self.path, self.how, share, self._seconds)
        on_host = self.device.type == "cpu"
        host = loader if on_host else run_loader(self.store, replace(self.how, device="cpu"), share, self._seconds)
        random, in_order = (
            self._read(random=way, rows=share.rows, seconds=self._seconds / 2, again=True) for way in (True, False)
        )
        return Warm(random, in_order, loader, host)

    def copies(self) -> float:
        """Bytes a second of plain copies in memory."""
        most = min(WARM_BYTES // 2, (self.memory or WARM_BYTES) // 8, self.bytes)
        return Copies(self._shape, max(2, most // self.batch_bytes)).bytes_per_s(self._seconds / 2)

    def transfers(self) -> float | None:
        """Bytes a second to the device; None on the host."""
        if self.device.type == "cpu":
            return None
        return transfer_rate(self.device, self._shape, self._seconds / 2)

    def _warm_share(self, cold_rate: float | None) -> Share:
        limits = [WARM_BYTES, (self.memory or WARM_BYTES) // 4]
        if cold_rate is not None:
            limits.append(int(cold_rate * 2 * self._seconds))
        least = 2 * self.how.batch_size + 1  # so that equal shares have a batch
        return find_share(self.store.rows, len(self.store), max(least, min(limits) // self.row_bytes))

    def _drop(self) -> str:
        rows = np.array(self.store.rows[:: -(-len(self.store.rows) // PLACES)])
        with closing(ShardFiles(self.store)) as files:
            spans = [span for row in rows for span in files.spans(row[None])]
            places = [Place(files.paths[span.shard], span.offset + self.row_bytes // 2) for span in spans]
        return make_cold({place.path for place in places}, places)

    def _read(
        self, *, random: bool, rows: range, threads: int = THREADS, seconds: float | None = None, again: bool = False
    ) -> float:
        """Bytes a second of reading these rows once, or again and again, for so long at most."""
        with closing(ShardFiles(self.store)) as files:
            once = partial(random_rows if random else rows_in_order, files, rows)
            pieces = chain.from_iterable(once() for _ in count()) if again else once()
            return Reads(pieces, threads, self._seconds if seconds is None else seconds).bytes_per_s()


def measure_load(path: Path, how: LoaderSettings, gpu_rate: float, seconds: float) -> dict[str, Any]:
    """All of it, as `--json` prints it: bytes and pictures (samples) a second, None for what was not measured."""
    bench = LoadBench(path, how, seconds)
    cold = bench.cold()
    warm = bench.warm(cold.random)
    facts = {**_what(bench, warm), **_rates(bench, cold, warm), "gpu_samples_per_s": gpu_rate}
    facts["memcpy_bytes_per_s"], facts["transfer_bytes_per_s"] = bench.copies(), bench.transfers()
    return {**facts, **_verdict(bench, cold, warm, facts)}


def _what(bench: LoadBench, warm: Warm) -> dict[str, Any]:
    return {
        "store": str(bench.path),
        "rows": len(bench.store.rows),
        "row_bytes": bench.row_bytes,
        "bytes": bench.bytes,
        "available_memory_bytes": bench.memory,
        "fits_memory": bench.fits,
        "batch_size": bench.how.batch_size,
        "device": str(bench.device),
        "reader": warm.loader.reader,
        "why": warm.loader.why,
        "threads": warm.loader.threads,
    }


def _rates(bench: LoadBench, cold: Cold, warm: Warm) -> dict[str, Any]:
    first = cold.loader
    return {
        "why_not_cold": cold.why,
        "random_read_cold_bytes_per_s": cold.random,
        "sequential_read_cold_bytes_per_s": cold.in_order,
        "loader_cold_bytes_per_s": first.bytes_per_s if first else None,
        "random_read_warm_bytes_per_s": warm.random,
        "sequential_read_warm_bytes_per_s": warm.in_order,
        "loader_warm_bytes_per_s": warm.loader.bytes_per_s,
        "loader_cold_waits_for": first.waits_for if first else None,
        "loader_warm_waits_for": warm.loader.waits_for,
        "first_batch_s": warm.loader.first_batch_s,
        "first_batch_cold_s": first.first_batch_s if first else None,
        "peak_anon_bytes": max(warm.loader.peak_anon_bytes, first.peak_anon_bytes if first else 0),
        "ring_bytes": warm.loader.slots * bench.batch_bytes,
    }


def _verdict(bench: LoadBench, cold: Cold, warm: Warm, facts: dict[str, Any]) -> dict[str, Any]:
    """What limits, and the rates of the steady state: cold ones where memory does not hold the rows."""
    from_memory = {"memory": warm.host.bytes_per_s / bench.row_bytes, "training": facts["gpu_samples_per_s"]}
    if facts["transfer_bytes_per_s"] is not None:
        from_memory["transfer"] = facts["transfer_bytes_per_s"] / bench.row_bytes
    cold_rate = cold.loader.bytes_per_s if cold.loader else cold.random
    busy = cold.loader is not None and cold.loader.waits_for.startswith("copy")
    from_storage = {} if cold_rate is None else {"processor" if busy else "storage": cold_rate / bench.row_bytes}
    room = f"{size_text(bench.bytes)} of rows do not fit into {size_text(bench.memory or 0)} of memory"
    verdict = load_verdict(from_memory, from_storage, fits=bench.fits, why_warm=cold.why, room=room)
    steady = warm.loader.bytes_per_s if bench.fits or cold_rate is None else cold_rate
    return {
        "samples_per_s": steady / bench.row_bytes,
        "bytes_per_s": steady,
        "limits": verdict.limits,
        "first_epoch_limits": verdict.first_epoch_limits or None,
        "sentence": verdict.sentence,
    }
