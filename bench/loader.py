"""Compare the Loader's rates with memory copies, and measure its memory and start times, in one run.

    python -m bench.loader STORE [--repeats 5] [--batch-size 256] [--json]

Each repeat runs these arms in turn, warm, over the same bytes: two threads of np.copyto into the same kind of buffers
as the Loader's (from memory in order, from memory row by row in a random order, and likewise from the mapped shard, if
there is only one); the Loader's epochs, for each shuffle and reader; and epochs with and without verify=True, with one
thread and with two. Rates are medians. Ratios to np.copyto in order, and of checked to unchecked epochs, are ratios of
the medians with their range over the repeats.

Then it measures how much memory a Loader adds to this process, with sparse stores of 1 and 10 GB, and how long it takes
to open a store of 1,000 shards and 100 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.conditions import conditions, heading, ratio, ratio_text
from bench.copies import Copies, drain
from bench.synthetic import ROW_BYTES, synthetic_store
from decodeonce import Loader, open_store
from decodeonce.loader.order import Shuffle
from decodeonce.loader.readers import ReaderName

SCRATCH = Path(__file__).resolve().parent.parent / "build"
CHECKED = ", checked"
SIZES = {"1 GB": 10**9, "10 GB": 10**10}


def anonymous_bytes() -> int:
    """Return RssAnon of this process, which excludes the pages of a mapped store."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def first_batch(path: Path, batch_size: int) -> float:
    """Return the seconds from creating a Loader to its first batch."""
    start = time.perf_counter()
    with Loader(path, batch_size=batch_size) as loader:
        next(iter(loader))
        return time.perf_counter() - start


def memory_growth(path: Path, batch_size: int, reader: ReaderName) -> dict[str, float]:
    """Return how much anonymous memory an epoch adds to this process, and the bytes of the Loader's slots."""
    before = anonymous_bytes()
    with Loader(path, batch_size=batch_size, reader=reader) as loader:
        drain(loader)
        memory, yielded = (loader.stats()[group] for group in ("memory", "yielded"))
        slots = memory["slots"] * yielded["bytes"] / yielded["batches"]
        return {"growth_bytes": anonymous_bytes() - before, "ring_bytes": slots}


def memory(batch_size: int) -> dict[str, dict[str, float]]:
    """Return memory_growth for each store size and reader."""
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
    """Return the median seconds to open a store of 1,000 shards and 100 GB."""
    path = synthetic_store(SCRATCH / "sparse-1000-shards.store", 10**11 // ROW_BYTES, shards=1000, sparse=True)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        open_store(path)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure(path: Path, batch_size: int, repeats: int) -> dict[str, Any]:
    """Run all measurements and return the facts to print."""
    here = conditions(len(open_store(path)), "rows in the page cache (warm)")
    drain(Loader(path, batch_size=batch_size))  # warms the page cache, imports modules, makes torch's first calls
    facts: dict[str, Any] = {"conditions": here, "memory": memory(batch_size), "open_1000_shards_s": opening(repeats)}
    facts["first_batch_s"] = statistics.median(first_batch(path, batch_size) for _ in range(repeats))
    store = open_store(path)
    steps = len(store) // batch_size
    nbytes = steps * batch_size * store.manifest.row_bytes
    arms: dict[str, Callable[[], None]] = {"copyto": Copies(store, batch_size, steps).epoch}
    arms["copyto, shuffled"] = Copies(store, batch_size, steps, shuffled=True).epoch
    if len(store.manifest.shards) == 1:
        arms["copyto, shuffled, mapped"] = Copies(store, batch_size, steps, shuffled=True, mapped=True).epoch
    readers: tuple[ReaderName, ...] = ("mmap", "pread")
    shuffles: tuple[Shuffle, ...] = ("full", "window", "none")
    for reader in readers:
        for shuffle in shuffles:
            loader = Loader(store, batch_size=batch_size, shuffle=shuffle, reader=reader)
            arms[f"{shuffle} {reader}"] = partial(drain, loader)
    for reader in readers:
        for threads in (1, 2):
            for checked, verify in (("", False), (CHECKED, True)):
                loader = Loader(store, batch_size=batch_size, reader=reader, threads=threads, verify=verify)
                arms[f"{reader}, {threads} thr.{checked}"] = partial(drain, loader)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):
        for name, epoch in arms.items():
            start = time.perf_counter()
            epoch()
            if repeat:  # the first run is left out: it touches new slots and mappings
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    facts = measure(options.store, options.batch_size, options.repeats)
    if options.json:
        print(json.dumps(facts))
        return
    print(heading(facts["conditions"]))
    print(f"{facts['epoch_bytes'] / 1e9:.2f} GB per epoch, batches of {facts['batch_bytes'] / 1e6:.1f} MB")
    for name, rate in facts["bytes_per_s"].items():
        samples, share = facts["samples_per_s"][name], ratio_text(facts["ratio_to_copyto"][name])
        print(f"{name:23s} {rate / 1e9:6.2f} GB/s {samples:9,.0f} rows/s {share} of copyto")
    for name, share in facts["ratio_to_unchecked"].items():
        print(f"{name:23s} {ratio_text(share)} of unchecked")
    print(f"first batch    {facts['first_batch_s'] * 1e3:6.1f} ms")
    print(f"open           {facts['open_1000_shards_s'] * 1e3:6.1f} ms (1,000 shards, 100 GB)")
    for name, memory_facts in facts["memory"].items():
        growth, slots = memory_facts["growth_bytes"] / 1e6, memory_facts["ring_bytes"] / 1e6
        print(f"{name:14s} {growth:6.1f} MB of anonymous memory added, {slots:.1f} MB of it slots")


if __name__ == "__main__":
    main()
