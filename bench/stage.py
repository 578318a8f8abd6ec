"""Compare staging a store with `cp` of the same bytes.

    python -m bench.stage [STORE] [--repeats 5] [--disk build] [--json]

Each arm copies to a folder on a disk and to /dev/shm, from memory (warm) and from the store's disk (cold: its pages are
dropped before each arm). The arms run in turn: `cp`, which checks nothing and leaves the bytes in memory; `cp` and
`sync`, to the disk only; and stage_store with all rows, which hashes every row and whose result is durable.

Without STORE, 2 GB of random rows are created in build/stage.store and kept. Rates are medians; ratios are ratios of
the medians with their range over the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.cold import drop_pages
from bench.conditions import conditions, heading, ratio, ratio_text
from bench.synthetic import synthetic_store
from decodeonce import Store, open_store
from decodeonce.store import stage_store

SCRATCH = Path(__file__).resolve().parent.parent / "build"
ROWS = 40 * 256


def copy(store: Store, dest: Path, *, sync: bool) -> None:
    """Copy all files with cp; `sync`: wait until they are on the disk."""
    subprocess.run(["cp", "-r", str(store.paths.root), str(dest)], check=True)
    if sync:
        subprocess.run(["sync", "-f", str(dest)], check=True)


def stage(store: Store, dest: Path) -> None:
    """Stage all rows."""
    stage_store(store, dest, rows=range(len(store)))


def warm_up(store: Store) -> None:
    """Read the whole store into memory."""
    for shard in store.manifest.shards:
        with open(store.paths.root / shard.file, "rb") as file:
            while file.read(1 << 24):
                pass


def rate(store: Store, arm: Callable[[Store, Path], None], dest: Path, prepare: Callable[[Store], None]) -> float:
    """Run one arm into a new folder and return bytes/s. Pending writes are flushed to the disk first."""
    shutil.rmtree(dest, ignore_errors=True)
    os.sync()
    prepare(store)
    start = time.perf_counter()
    arm(store, dest)
    seconds = time.perf_counter() - start
    shutil.rmtree(dest)
    return len(store) * store.manifest.row_bytes / seconds


def measure(store: Store, disk: Path, repeats: int) -> dict[str, Any]:
    """Run all arms; return their rates, and the ratios of staging to `cp` (on a disk, to `cp` and `sync`)."""
    here = conditions(len(store), "rows in the page cache (warm) or not (cold), as named below")
    arms: dict[str, Callable[[Store, Path], None]] = {
        "cp": partial(copy, sync=False),
        "cp, sync": partial(copy, sync=True),
        "stage": stage,
    }
    places = {"disk": disk / "staged", "shm": Path("/dev/shm/decodeonce-staged")}
    cases = [
        (f"{heat}, {place}", prepare, dest, {k: v for k, v in arms.items() if place == "disk" or k != "cp, sync"})
        for heat, prepare in (("warm", warm_up), ("cold", drop_pages))
        for place, dest in places.items()
    ]
    rates: dict[str, dict[str, list[float]]] = {name: {arm: [] for arm in some} for name, _, _, some in cases}
    for _ in range(repeats):
        for name, prepare, dest, some in cases:
            for arm, run in some.items():
                rates[name][arm].append(rate(store, run, dest, prepare))
    facts: dict[str, Any] = {"conditions": here, "bytes": len(store) * store.manifest.row_bytes}
    facts |= {"bytes_per_s": {}, "stage_over_cp": {}}
    for name, values in rates.items():
        facts["bytes_per_s"][name] = {arm: statistics.median(v) for arm, v in values.items()}
        facts["stage_over_cp"][name] = ratio(values["stage"], values.get("cp, sync", values["cp"]))
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--disk", type=Path, default=SCRATCH, help="folder on the disk to stage to (default: build)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    store = open_store(options.store or synthetic_store(SCRATCH / "stage.store", ROWS, shards=2))
    facts = measure(store, options.disk, options.repeats)
    if options.json:
        print(json.dumps(facts))
        return
    print(heading(facts["conditions"]))
    print(f"{facts['bytes'] / 1e9:.1f} GB")
    for name, rates in facts["bytes_per_s"].items():
        text = ", ".join(f"{arm} {value / 1e9:.2f}" for arm, value in rates.items())
        print(f"{name:12s} GB/s: {text}; stage / cp: {ratio_text(facts['stage_over_cp'][name])}")


if __name__ == "__main__":
    main()
