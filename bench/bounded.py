"""Measure the Loader in a process whose memory, page cache included, is limited to its slots and 300 MB more.

    python -m bench.bounded [STORE] [--repeats 3] [--batch-size 256] [--room 300] [--json]

Each arm is one epoch in a new process, in turn with and without the limit. Ratios are ratios of the medians.

The limit is the anonymous memory of such a process (the Loader's slots, and the interpreter with torch), which is
measured first, plus --room MB. A memory cgroup (v1 or v2) enforces it, which needs root.

Cold: the store's pages are dropped before each arm. Warm: this process reads all pages into memory first. They then
count as its own memory, not as that of the limited process, which could not keep them.

Pairs in the table are without and with the limit: rates, bytes read from storage per byte of the store, and processor
seconds per GB. Without STORE, 8 GB of random rows are created in build/cold.store and kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.cold import ROWS, SCRATCH, SHUFFLES, drop_pages, own_proc_value
from bench.conditions import conditions, heading, ratio, ratio_text
from bench.synthetic import synthetic_store
from decodeonce import Loader, Store, open_store
from decodeonce.loader.order import Shuffle

CGROUPS = Path("/sys/fs/cgroup")
UNITS = {"rate": 1e-9, "read": 1, "cpu": 1}


class CgroupError(Exception):
    """A memory cgroup cannot be created here; the message says why."""


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """Create a cgroup that limits memory, page cache included, to `limit` bytes; remove it at the end."""
    v1 = CGROUPS / "memory"
    group = (v1 if v1.exists() else CGROUPS) / f"decodeonce-{os.getpid()}"
    name = "memory.limit_in_bytes" if v1.exists() else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        raise CgroupError(f"{group}: {error.strerror}") from error
    try:
        try:
            (group / name).write_text(str(limit))
        except OSError as error:
            raise CgroupError(f"{group / name}: {error.strerror}") from error
        yield group
    finally:
        group.rmdir()


def in_cgroup(command: list[str], group: Path) -> list[str]:
    """Return the command that runs another one in a cgroup."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]


def measure_epoch(path: Path, shuffle: Shuffle, batch_size: int) -> dict[str, Any]:
    """Run one epoch in this process and return its rates, start included, and its anonymous memory at the end."""
    with Loader(path, batch_size=batch_size, shuffle=shuffle) as loader:
        start, cpu, before = time.perf_counter(), time.process_time(), own_proc_value("io", "read_bytes")
        for _ in loader:
            pass
        seconds, stats = time.perf_counter() - start, loader.stats()
        return {
            "rate": stats["yielded"]["bytes"] / seconds,
            "cpu": (time.process_time() - cpu) / stats["yielded"]["bytes"] * 1e9,
            "read": (own_proc_value("io", "read_bytes") - before) / stats["yielded"]["bytes"],
            "reader": stats["reader"]["name"],
            "anonymous": own_proc_value("status", "RssAnon") * 1024,
        }


def run_epoch(path: Path, shuffle: str, batch_size: int, group: Path | None) -> dict[str, Any]:
    """Run measure_epoch in a new process, in this cgroup."""
    command = [sys.executable, "-m", "bench.bounded", str(path), "--epoch", shuffle, "--batch-size", str(batch_size)]
    command = command if group is None else in_cgroup(command, group)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the epoch with shuffle={shuffle!r} failed with exit code {done.returncode}")
    return dict(json.loads(done.stdout))


def warm_up(store: Store) -> None:
    """Read all pages of the store into memory, so that they count as memory of this process."""
    for shard in store.manifest.shards:
        with open(store.paths.root / shard.file, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def measure(store: Store, batch_size: int, repeats: int, room: int) -> dict[str, Any]:
    """Run all arms; return their medians, and the ratios of rates with the limit to rates without."""
    root = store.paths.root
    limit = run_epoch(root, "full", batch_size, None)["anonymous"] + room
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for state, prepare in (("cold", drop_pages), ("warm", warm_up)):
            for shuffle in SHUFFLES:
                name = f"{shuffle}, {state}"
                prepare(store)
                found.setdefault(name, []).append(run_epoch(root, shuffle, batch_size, None))
                prepare(store)
                with memory_cgroup(limit) as group:
                    found.setdefault(f"{name}, bounded", []).append(run_epoch(root, shuffle, batch_size, group))
    arms = {
        name: {key: statistics.median(run[key] for run in runs) for key in ("rate", "cpu", "read")}
        for name, runs in found.items()
    }
    ratios = {
        name: ratio([run["rate"] for run in found[f"{name}, bounded"]], [run["rate"] for run in runs])
        for name, runs in found.items()
        if not name.endswith("bounded")
    }
    return {"limit": limit, "arms": arms, "bounded_over_free": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--room", type=int, default=300, help="MB allowed on top of slots and interpreter")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--epoch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epoch:
        print(json.dumps(measure_epoch(options.store, options.epoch, options.batch_size)))
        return 0
    try:
        with memory_cgroup(1 << 30):
            pass
    except CgroupError as error:
        print(f"nothing is measured, because a memory cgroup cannot be created here: {error}")
        return 0
    store = open_store(options.store or synthetic_store(SCRATCH / "cold.store", ROWS))
    here = conditions(len(store), "cold and warm")
    facts = {"conditions": here, **measure(store, options.batch_size, options.repeats, options.room * 10**6)}
    print(heading(here))
    nbytes, limit = len(store) * store.manifest.row_bytes, facts["limit"]
    print(f"{nbytes / 1e9:.1f} GB per epoch; limit: {limit / 1e6:.0f} MB of memory, page cache included\n")
    print("| `shuffle` | pages | GB/s | limited / unlimited | read per byte | processor, s/GB |")
    print("|---|---|---|---|---|---|")
    for name, share in facts["bounded_over_free"].items():
        free, bounded = (facts["arms"][f"{name}{suffix}"] for suffix in ("", ", bounded"))
        pairs = [f"{free[key] * unit:.2f}, {bounded[key] * unit:.2f}" for key, unit in UNITS.items()]
        pairs.insert(1, ratio_text(share))
        print(f"| {name.replace(', ', ' | ')} | {' | '.join(pairs)} |")
    if options.json:
        print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
