"""How fast batches come out of a store, beside the copy that bounds them, in one run.

    python bench/loader.py STORE [--repeats 5] [--batch-size 256] [--json]

Each repeat runs in turn, warm, over the same bytes: two threads of np.copyto from resident memory into the same kind
of buffers as the Loader's; the Loader's epochs, for each shuffle and reader; with one thread and with two, epochs
that check every row beside epochs that do not. Rates are medians; ratios to np.copyto, and of checked to unchecked
epochs, are ratios of these with their range over the repeats. Then what a Loader adds to this process's memory with
sparse stores of 1 and 10 GB, and how long one of 1,000 shards and 100 GB takes to open.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from conditions import conditions, heading, ratio, ratio_text
from synthetic import ROW_BYTES, synthetic_store

from decodeonce import Loader, Store, open_store
from decodeonce.loader.slots import page_aligned_slot

THREADS = 2
SCRATCH = Path(__file__).resolve().parent.parent / "build"
CHECKED = ", checked"
SIZES = {"1 GB": 10**9, "10 GB": 10**10}


class Copies:
    """Each of two threads copies its half of every batch; they do not wait for each other."""

    def __init__(self, store: Store, batch_size: int, steps: int) -> None:
        shape = store.manifest.shape
        self.source = page_aligned_slot((steps * batch_size, *shape)).pixels
        store.take(np.arange(len(self.source)), out=self.source)
        # As many as the Loader's ring has, so that the destinations are as cold.
        self.slots = [page_aligned_slot((batch_size, *shape)).pixels for _ in range(5)]
        self.batch_size, self.steps = batch_size, steps

    def epoch(self) -> None:
        threads = [threading.Thread(target=self._copy, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _copy(self, number: int) -> None:
        part = slice(number * self.batch_size // THREADS, (number + 1) * self.batch_size // THREADS)
        for step in range(self.steps):
            batch = self.source[step * self.batch_size : (step + 1) * self.batch_size]
            np.copyto(self.slots[step % len(self.slots)][part], batch[part])


def drain(batches: Any) -> None:
    """Take every batch and drop it."""
    for _ in batches:
        pass


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def first_batch(path: Path, batch_size: int) -> float:
    """Seconds from asking for a Loader to holding its first batch."""
    start = time.perf_counter()
    with Loader(path, batch_size=batch_size) as loader:
        next(iter(loader))
        return time.perf_counter() - start


def memory_growth(path: Path, batch_size: int, reader: str) -> dict[str, float]:
    """What an epoch adds to this process's anonymous memory, and how much of that is the ring."""
    before = anonymous_bytes()
    with Loader(path, batch_size=batch_size, reader=reader) as loader:
        drain(loader)
        ring = loader.stats()["slots"] * loader.stats()["bytes"] / loader.stats()["batches"]
        return {"growth_bytes": anonymous_bytes() - before, "ring_bytes": ring}


def memory(batch_size: int) -> dict[str, dict[str, float]]:
    """The same for each size of a store and each reader."""
    stores = {
        name: synthetic_store(SCRATCH / f"sparse-{name.split()[0]}.store", nbytes // ROW_BYTES, sparse=True)
        for name, nbytes in SIZES.items()
    }
    return {
        f"{name}, {reader}": memory_growth(path, batch_size, reader)
        for name, path in stores.items()
        for reader in ("mmap", "pread")
    }


def opening(repeats: int) -> float:
    """Seconds to open a store of 1,000 shards and 100 GB."""
    path = synthetic_store(SCRATCH / "sparse-1000-shards.store", 10**11 // ROW_BYTES, shards=1000, sparse=True)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        open_store(path)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure(path: Path, batch_size: int, repeats: int) -> dict[str, Any]:
    """All of it."""
    here = conditions(len(open_store(path)), "rows in the page cache (warm)")
    drain(Loader(path, batch_size=batch_size))  # warm: page cache, imports, torch's first calls
    facts: dict[str, Any] = {"conditions": here, "memory": memory(batch_size), "open_1000_shards_s": opening(repeats)}
    facts["first_batch_s"] = statistics.median(first_batch(path, batch_size) for _ in range(repeats))
    store = open_store(path)
    steps = len(store) // batch_size
    nbytes = steps * batch_size * store.manifest.row_bytes
    arms: dict[str, Callable[[], None]] = {"copyto": Copies(store, batch_size, steps).epoch}
    for reader in ("mmap", "pread"):
        for shuffle in ("full", "window", "none"):
            loader = Loader(store, batch_size=batch_size, shuffle=shuffle, reader=reader)
            arms[f"{shuffle} {reader}"] = partial(drain, loader)
    for reader in ("mmap", "pread"):
        for threads in (1, 2):
            for checked, verify in (("", False), (CHECKED, True)):
                loader = Loader(store, batch_size=batch_size, reader=reader, threads=threads, verify=verify)
                arms[f"{reader}, {threads} thr.{checked}"] = partial(drain, loader)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):
        for name, epoch in arms.items():
            start = time.perf_counter()
            epoch()
            if repeat:  # the first one touches slots and mappings for the first time
                rates[name].append(nbytes / (time.perf_counter() - start))
    facts["bytes_per_s"] = {name: statistics.median(values) for name, values in rates.items()}
    facts["ratio_to_copyto"] = {name: ratio(values, rates["copyto"]) for name, values in rates.items()}
    facts["ratio_to_unchecked"] = {
        name: ratio(values, rates[name.removesuffix(CHECKED)])
        for name, values in rates.items()
        if name.endswith(CHECKED)
    }
    facts["samples_per_s"] = {k: v / store.manifest.row_bytes for k, v in facts["bytes_per_s"].items()}
    return {**facts, "batch_bytes": batch_size * store.manifest.row_bytes, "epoch_bytes": nbytes, "repeats": repeats}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args()
    facts = measure(asked.store, asked.batch_size, asked.repeats)
    if asked.json:
        print(json.dumps(facts))
        return
    print(heading(facts["conditions"]))
    print(f"{facts['epoch_bytes'] / 1e9:.2f} GB an epoch, batches of {facts['batch_bytes'] / 1e6:.1f} MB")
    for name, rate in facts["bytes_per_s"].items():
        samples, share = facts["samples_per_s"][name], ratio_text(facts["ratio_to_copyto"][name])
        print(f"{name:23s} {rate / 1e9:6.2f} GB/s {samples:9,.0f} rows/s {share} of copyto")
    for name, share in facts["ratio_to_unchecked"].items():
        print(f"{name:23s} {ratio_text(share)} of unchecked")
    print(f"first batch    {facts['first_batch_s'] * 1e3:6.1f} ms")
    print(f"open           {facts['open_1000_shards_s'] * 1e3:6.1f} ms (1,000 shards, 100 GB)")
    for name, memory_facts in facts["memory"].items():
        growth, ring = memory_facts["growth_bytes"] / 1e6, memory_facts["ring_bytes"] / 1e6
        print(f"{name:14s} {growth:6.1f} MB of anonymous memory more, of which the ring {ring:.1f} MB")


if __name__ == "__main__":
    main()
