"""`prep bench load`: time epochs of a Loader, first with the store on storage, then with its rows in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from decodeonce import Loader
from decodeonce.cli.bench.machine import drop_pages, others_share, others_text
from decodeonce.formatting import size_text
from decodeonce.host import available_memory, is_in_memory, network_file_system
from decodeonce.store import open_store
from decodeonce.store.layout import Json

WARM_BYTES = 1 << 30  # the most rows, in bytes, that are read into memory
WARM_UP_BATCHES = 6  # more than a Loader has slots: the first write to a slot of 0.4 GB takes 1.6 s, the next 0.02 s
COLD = 0.5  # the smallest share of read-ahead checks that finds rows on storage if the store is cold
WHAT = {
    "training": "the training step",
    "storage": "storage",
    "copy": "copying in memory",
    "transfer": "the transfer to the device",
}


@dataclass(frozen=True)
class Timed:
    """The rate of a Loader, the time to its first batch, and what it says about itself."""

    samples_per_s: float
    first_batch_s: float
    bottleneck: str
    stats: Json


def measure_load(path: Path, how: Mapping[str, Any], gpu_rate: float, seconds: float) -> Json:
    """Measure everything that `--json` prints, in bytes/s and images/s ("samples"); None means not measured."""
    others, store = others_share(), open_store(path)
    rows, row_bytes, memory = store.rows, store.manifest.row_bytes, available_memory()
    timed = partial(_timed, path, how)
    timed(rows[:1], seconds=0.0)  # the first calls of torch are slow
    cold, limits = None, [WARM_BYTES, (memory or WARM_BYTES) // 4]
    why_warm = f"{path} is on a memory file system" if is_in_memory(path) else ""
    if not why_warm:
        drop_pages(store.paths.root / shard.file for shard in store.manifest.shards)
        cold = timed(rows, seconds=2 * seconds, epochs=1)
        limits.append(int(cold.samples_per_s * row_bytes * 2 * seconds))
        if cold.stats["threads"]["cold_share"] < COLD and not network_file_system(path):
            cold, why_warm = None, "rows stayed in memory, or the file system does not tell whether they did"
    kept = rows[: max(2 * how["batch_size"], min(limits) // row_bytes)]
    timed(kept, seconds=np.inf, epochs=1)  # reads them into memory
    warm = timed(kept, seconds=seconds, skip=WARM_UP_BATCHES)
    fits = memory is None or len(rows) * row_bytes <= memory
    if cold:
        fits &= cold.stats["reader"]["kept"] == 1
    steady = warm if fits or cold is None else cold
    measured = {
        "store": str(path),
        "rows": len(rows),
        "row_bytes": row_bytes,
        "bytes": len(rows) * row_bytes,
        "available_memory_bytes": memory,
        "fits_memory": fits,
        "other_programs_share": others,
        "batch_size": min(how["batch_size"], len(rows)),
        "device": how["device"],
        "why_not_cold": why_warm,
        "loader_cold": asdict(cold) if cold else None,
        "loader_warm": asdict(warm),
        "gpu_samples_per_s": gpu_rate,
        "samples_per_s": steady.samples_per_s,
        "bytes_per_s": steady.samples_per_s * row_bytes,
        "limits": _limit(steady, gpu_rate),
        "first_epoch_limits": _limit(cold, gpu_rate) if cold else None,
    }
    return {**measured, "sentence": _sentence(measured, cold, warm)}


def _limit(timed: Timed, gpu_rate: float) -> str:
    """Return what limits training, as a key of WHAT."""
    return "training" if gpu_rate <= timed.samples_per_s else timed.bottleneck.partition(":")[0]


def _sentence(measured: Json, cold: Timed | None, warm: Timed) -> str:
    def limited(timed: Timed) -> str:
        rate = min(measured["gpu_samples_per_s"], timed.samples_per_s)
        return f"limited by {WHAT[_limit(timed, measured['gpu_samples_per_s'])]}, at {rate:,.0f} images/s"

    if cold is None:
        return f"Every epoch is {limited(warm)}, if the rows are in memory: {measured['why_not_cold']}"
    if 0 < (kept := cold.stats["reader"]["kept"]) < 1:
        return f"The first epoch is {limited(cold)}; later epochs read {kept:.0%} of the rows from memory"
    if not measured["fits_memory"]:
        room = f"{size_text(measured['bytes'])} of rows do not fit into {size_text(measured['available_memory_bytes'])}"
        return f"Every epoch is {limited(cold)}, because {room} of memory"
    if limited(cold) == limited(warm):
        return f"Every epoch is {limited(warm)}"
    return f"The first epoch is {limited(cold)}; with all rows in memory, later epochs are {limited(warm)}"


def _timed(
    path: Path,
    how: Mapping[str, Any],
    rows: range,
    *,
    seconds: float = np.inf,
    epochs: int | None = None,
    skip: int = 0,
) -> Timed:
    """Take at least one batch of shuffled epochs, for about `seconds` or for `epochs` epochs.

    The time to the first batch starts with opening the store and ends when the batch is on the device. The rate
    excludes the first `skip` batches.
    """
    began, taken, first = time.perf_counter(), 0, 0.0
    settings = {**how, "batch_size": min(how["batch_size"], len(rows))}
    with Loader(path, rows=np.array(rows), rank=0, world_size=1, **settings) as loader:
        start = time.perf_counter()
        for number, batch in enumerate(
            chain.from_iterable(repeat(loader) if epochs is None else repeat(loader, epochs))
        ):
            batch.images[-1, -1, -1, -1].item()  # waits until the batch is on the device
            now = time.perf_counter()
            first = first or now - began
            if number < skip:
                start = now
                continue
            taken += len(batch.labels)
            if now - start >= seconds:
                break
        return Timed(taken / (now - start), first, loader.bottleneck(), loader.stats())


def load_lines(measured: Json, *, verbose: bool) -> Iterator[str]:
    """Yield the lines of `prep bench load`: the verdict, the rates and, if `verbose`, what the Loaders say."""
    yield measured["sentence"]
    row_bytes, cold, warm = measured["row_bytes"], measured["loader_cold"], measured["loader_warm"]
    memory = "unknown" if (free := measured["available_memory_bytes"]) is None else size_text(free)
    rows = f"{measured['rows']:,} rows of {size_text(row_bytes)}, {size_text(measured['bytes'])}"
    yield f"{rows}; {memory} of memory available"
    rates = {
        "Loader, cold": cold and cold["samples_per_s"],
        "Loader, rows in memory": warm["samples_per_s"],
        "training step (--gpu-rate)": measured["gpu_samples_per_s"],
    }
    yield f"{'':26}  {'MB/s':>10}  {'images/s':>10}"
    for name, rate in rates.items():
        yield f"{name:26}  {rate * row_bytes / 1e6:>10,.0f}  {rate:>10,.0f}" if rate else f"{name:26}  not measured"
    for name, timed in (("Loader, cold", cold), ("Loader, rows in memory", warm)):
        if timed and verbose:
            yield f"{name}: first batch after {timed['first_batch_s'] * 1e3:,.0f} ms; {timed['bottleneck']}"
            for group, values in timed["stats"].items():
                yield f"  {group}: {', '.join(f'{key} {value}' for key, value in values.items())}"
    yield from others_text(measured["other_programs_share"])
