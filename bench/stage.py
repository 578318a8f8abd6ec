"""How fast a part of a store is staged, beside `cp` of the same bytes.

    python bench/stage.py [STORE] [--repeats 5] [--disk build] [--json]

To a folder on a disk and to /dev/shm, from memory (warm) and from the store's disk (cold: its pages dropped before each
arm), the arms in turn: `cp`, which checks nothing and leaves the bytes in memory; on the disk `cp` and `sync`;
stage_store of all rows, which hashes every row and is durable when it ends. Without STORE, 2 GB of drawn rows are kept
in build/stage.store. Rates are medians; ratios are ratios of these, with their range over the repeats.
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

from cold import forget
from conditions import conditions, heading, ratio, ratio_text
from synthetic import synthetic_store

from decodeonce import Store, open_store
from decodeonce.store import stage_store

SCRATCH = Path(__file__).resolve().parent.parent / "build"
ROWS = 40 * 256


def copy(store: Store, dest: Path, *, sync: bool) -> None:
    """All files, with cp."""
    subprocess.run(["cp", "-r", str(store.paths.root), str(dest)], check=True)
    if sync:
        subprocess.run(["sync", "-f", str(dest)], check=True)


def stage(store: Store, dest: Path) -> None:
    """All rows."""
    stage_store(store, dest, rows=range(len(store)))


def warm_up(store: Store) -> None:
    """Have all of the store in memory."""
    for shard in store.manifest.shards:
        with open(store.paths.root / shard.file, "rb") as file:
            while file.read(1 << 24):
                pass


def rate(store: Store, arm: Callable[[Store, Path], None], dest: Path, prepare: Callable[[Store], None]) -> float:
    """Bytes of rows a second, into a folder that is not there yet, on a disk that has nothing else to write."""
    shutil.rmtree(dest, ignore_errors=True)
    os.sync()
    prepare(store)
    start = time.perf_counter()
    arm(store, dest)
    seconds = time.perf_counter() - start
    shutil.rmtree(dest)
    return len(store) * store.manifest.row_bytes / seconds


def measure(store: Store, disk: Path, repeats: int) -> dict[str, Any]:
    """Rates of all arms, and each over that of `cp` and, on a disk, `sync`."""
    here = conditions(len(store), "rows in the page cache (warm) or not (cold), as named below")
    arms = {"cp": partial(copy, sync=False), "cp, sync": partial(copy, sync=True), "stage": stage}
    places = {"disk": disk / "staged", "shm": Path("/dev/shm/decodeonce-staged")}
    cases = [
        (f"{heat}, {place}", prepare, dest, {k: v for k, v in arms.items() if place == "disk" or k != "cp, sync"})
        for heat, prepare in (("warm", warm_up), ("cold", forget))
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
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--disk", type=Path, default=SCRATCH, help="a folder on the disk to stage to")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    asked = parser.parse_args()
    store = open_store(asked.store or synthetic_store(SCRATCH / "stage.store", ROWS, shards=2))
    facts = measure(store, asked.disk, asked.repeats)
    if asked.json:
        print(json.dumps(facts))
        return
    print(heading(facts["conditions"]))
    print(f"{facts['bytes'] / 1e9:.1f} GB")
    for name, rates in facts["bytes_per_s"].items():
        told = ", ".join(f"{arm} {value / 1e9:.2f}" for arm, value in rates.items())
        print(f"{name:12s} GB/s: {told}; stage {ratio_text(facts['stage_over_cp'][name])} times as fast as cp")


if __name__ == "__main__":
    main()
