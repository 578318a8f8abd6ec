"""`prep bench load`: measure how fast a store loads, cold and warm, and what limits it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from decodeonce.cli.bench.epochs import (
    WARM_UP_BATCHES,
    LoaderSettings,
    Share,
    find_share,
    open_loader,
    run_loader,
)
from decodeonce.cli.bench.load_results import load_summary
from decodeonce.cli.bench.pages import CHECKED, FilePosition, make_cold
from decodeonce.cli.bench.probes import (
    RANDOM_READERS,
    READERS,
    copy_rate,
    random_rows,
    read_rate,
    rows_in_order,
    transfer_rate,
)
from decodeonce.cli.bench.steps import run_steps, why_no_steps
from decodeonce.host import available_memory
from decodeonce.loader.delivery import find_device, open_device
from decodeonce.loader.partition import AHEAD_BYTES
from decodeonce.loader.readers import ShardFiles
from decodeonce.store import open_store

WARM_BYTES = 1 << 30  # the most rows, in bytes, for warm measurements
MAYBE_NOT_MEASURED = (
    "random_read_cold_bytes_per_s",
    "sequential_read_cold_bytes_per_s",
    "loader_cold_bytes_per_s",
    "loader_cold_waits_for",
    "first_batch_cold_s",
    "transfer_bytes_per_s",
    "transfer_over_copies",
    "steps",
    "steps_waited",
    "step_wait_s",
    "processor_s_per_step",
)


def measure_load(path: Path, how: LoaderSettings, gpu_rate: float, seconds: float) -> dict[str, Any]:
    """Measure everything that `--json` prints, in bytes/s and images/s ("samples"); None means not measured."""
    bench = LoadBench(path, how, seconds)
    bench.measure_cold()
    bench.measure_warm()
    bench.measure_bounds()
    bench.measure_steps(gpu_rate)
    return {**bench.facts, **load_summary(bench.facts)}


class LoadBench:
    """Measures one store with one set of Loader settings into `facts`. Each probe takes about `seconds`."""

    def __init__(self, path: Path, how: LoaderSettings, seconds: float) -> None:
        self._path, self._store, self._seconds = path, open_store(path), seconds
        self._row_bytes = self._store.manifest.row_bytes
        self._bytes = len(self._store.rows) * self._row_bytes
        self._memory = available_memory()
        self._fits = self._memory is None or self._bytes <= self._memory
        self._device = find_device(how.device)
        self._all = find_share(self._store.rows, len(self._store), len(self._store))
        self._how = replace(how, batch_size=min(how.batch_size, self._all.least))
        self._batch_bytes = self._how.batch_size * self._row_bytes
        self.facts: dict[str, Any] = {
            "store": str(path),
            "rows": len(self._store.rows),
            "row_bytes": self._row_bytes,
            "bytes": self._bytes,
            "available_memory_bytes": self._memory,
            "fits_memory": self._fits,
            "batch_size": self._how.batch_size,
            "device": str(self._device),
            **dict.fromkeys(MAYBE_NOT_MEASURED),
        }

    def measure_cold(self) -> None:
        """Measure plain reads and a first epoch, each after dropping the store from the page cache."""
        run_loader(self._path, replace(self._how, batch_size=1), self._all, 0.0)  # the first calls of torch are slow
        self.facts["why_not_cold"] = self.drop_pages()
        if self.facts["why_not_cold"]:
            return
        random = self._read(random=True, rows=self._store.rows)
        self.facts["random_read_cold_bytes_per_s"] = random
        if not self.drop_pages():
            self.facts["sequential_read_cold_bytes_per_s"] = self._read(random=False, rows=self._store.rows)
        needed = WARM_UP_BATCHES * self._batch_bytes + 2 * AHEAD_BYTES
        if random * self._seconds < min(needed, self._bytes) or self.drop_pages():
            return  # in this time, the Loader would not get past its first batches
        epoch = run_loader(self._path, self._how, self._all, 2 * self._seconds, epochs=1)
        self.facts["loader_cold_bytes_per_s"] = epoch.bytes_per_s
        self.facts["loader_cold_waits_for"] = epoch.waits_for
        self.facts["first_batch_cold_s"] = epoch.first_batch_s
        self.facts["peak_anon_bytes"] = epoch.peak_anon_bytes

    def measure_warm(self) -> None:
        """Measure the same for as many rows as can be read into memory in a few seconds, and batches on the host."""
        share, seconds = self._warm_share(), self._seconds
        self._read(random=False, rows=share.rows, seconds=4 * seconds)
        run_loader(self._store, self._how, share, epochs=1)  # maps the shards
        found = run_loader(self._path, self._how, share, seconds)
        self.facts |= {
            "random_read_warm_bytes_per_s": self._read(random=True, rows=share.rows, seconds=seconds / 2, again=True),
            "sequential_read_warm_bytes_per_s": self._read(
                random=False, rows=share.rows, seconds=seconds / 2, again=True
            ),
            "loader_warm_bytes_per_s": found.bytes_per_s,
            "loader_host_bytes_per_s": found.bytes_per_s,
            "loader_warm_waits_for": found.waits_for,
            "first_batch_s": found.first_batch_s,
            "peak_anon_bytes": max(found.peak_anon_bytes, self.facts.get("peak_anon_bytes", 0)),
            "slot_bytes": found.stats["slots"] * self._batch_bytes,
            **{name: found.stats[name] for name in ("reader", "why", "threads")},
        }
        if self._device.type != "cpu":
            on_host = run_loader(self._store, replace(self._how, device="cpu"), share, seconds)
            self.facts["loader_host_bytes_per_s"] = on_host.bytes_per_s

    def measure_bounds(self) -> None:
        """Measure plain copies in memory and, unless the device is the host, transfers to the device."""
        shape = (self._how.batch_size, *self._store.manifest.shape)
        most = min(WARM_BYTES // 2, (self._memory or WARM_BYTES) // 8, self._bytes)
        self.facts["memcpy_bytes_per_s"] = copy_rate(shape, max(2, most // self._batch_bytes), self._seconds / 2)
        if self._device.type != "cpu":
            copies = transfer_rate(open_device(self._device), shape, self._seconds / 2)
            self.facts["transfer_bytes_per_s"] = copies
            self.facts["transfer_over_copies"] = self.facts["loader_warm_bytes_per_s"] / copies

    def measure_steps(self, gpu_rate: float) -> None:
        """Measure waits and processor time of training steps at `gpu_rate` images/s, with the rows of measure_warm."""
        step_s = self._how.batch_size / gpu_rate
        self.facts |= {"gpu_samples_per_s": gpu_rate, "step_s": step_s}
        with open_loader(self._store, self._how, self._warm_share()) as loader:
            self.facts["why_no_steps"] = why = why_no_steps(loader, step_s, self._seconds)
            if why:
                return
            self.facts |= asdict(run_steps(loader, open_device(self._device), step_s, self._seconds))

    def _warm_share(self) -> Share:
        limits = [WARM_BYTES, (self._memory or WARM_BYTES) // 4]
        if (cold_rate := self.facts["random_read_cold_bytes_per_s"]) is not None:
            limits.append(int(cold_rate * 2 * self._seconds))
        least = 4 * self._how.batch_size + 1  # so that each equal share has two batches
        return find_share(self._store.rows, len(self._store), max(least, min(limits) // self._row_bytes))

    def drop_pages(self) -> str:
        """Drop the store from the page cache; return "", or why its pages stay in memory."""
        held, shards = self._store.rows, self._store.manifest.shards
        step = min(-(-len(held) // CHECKED), *(shard.rows for shard in shards[:-1]), len(held))
        rows = np.array([*held[::step], held[-1]])  # at least one of every shard
        with closing(ShardFiles(self._store)) as files:
            spans = [span for row in rows for span in files.spans(row[None])]
            return make_cold(
                [FilePosition(files.paths[span.shard], span.offset + self._row_bytes // 2) for span in spans]
            )

    def _read(self, *, random: bool, rows: range, seconds: float | None = None, again: bool = False) -> float:
        """Read these rows once, or repeatedly if `again`, for at most `seconds`; return bytes/s."""
        with closing(ShardFiles(self._store)) as files:
            once = partial(random_rows if random else rows_in_order, files, rows)
            pieces = chain.from_iterable(once() for _ in count()) if again else once()
            threads = RANDOM_READERS if random and not again else READERS
            return read_rate(pieces, threads, self._seconds if seconds is None else seconds)
