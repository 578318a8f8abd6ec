"""What the Loader gives where its process may have its ring and 300 MB, page cache counted in, and no more.

    python bench/bounded.py [STORE] [--repeats 3] [--batch-size 256] [--room 300] [--json]

Each arm is an epoch in a process of its own, with and without the bound in turn; ratios are those of the medians. The
bound is what such a process has of anonymous memory (the ring, and the interpreter with torch), measured first, and
--room MB more; a memory cgroup (v1 or v2) holds it, which takes root. Cold: the store's pages are dropped before each
arm. Warm: they are in memory, and this process had them read, so that they do not count there: a bounded process could
not keep them. Pairs are without and with the bound: rates, what storage gave for each byte of the store, and seconds
of processor. Without STORE, 8 GB of drawn rows are kept in build/cold.store.
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

from cold import ROWS, SCRATCH, SHUFFLES, forget, own
from conditions import conditions, heading, ratio, ratio_text
from synthetic import synthetic_store

from decodeonce import Loader, Store, open_store

CGROUPS = Path("/sys/fs/cgroup")
UNITS = {"rate": 1e-9, "read": 1, "cpu": 1}


class NoCgroup(Exception):
    """Why there is none."""


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup, for one process after the other, whose memory, page cache counted in, stays below `limit` bytes."""
    v1 = CGROUPS / "memory"
    group = (v1 if v1.exists() else CGROUPS) / f"decodeonce-{os.getpid()}"
    name = "memory.limit_in_bytes" if v1.exists() else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        raise NoCgroup(f"{group}: {error.strerror}") from error
    try:
        try:
            (group / name).write_text(str(limit))
        except OSError as error:
            raise NoCgroup(f"{group / name}: {error.strerror}") from error
        yield group
    finally:
        group.rmdir()


def epoch(path: Path, shuffle: str, batch_size: int) -> dict[str, Any]:
    """What an epoch gave, its start included; what storage gave for each byte; and the anonymous memory at its end."""
    with Loader(path, batch_size=batch_size, shuffle=shuffle) as loader:
        start, cpu, before = time.perf_counter(), time.process_time(), own("io", "read_bytes")
        for _ in loader:
            pass
        seconds, stats = time.perf_counter() - start, loader.stats()
        return {
            "rate": stats["bytes"] / seconds,
            "cpu": (time.process_time() - cpu) / stats["bytes"] * 1e9,
            "read": (own("io", "read_bytes") - before) / stats["bytes"],
            "reader": stats["reader"],
            "anonymous": own("status", "RssAnon") * 1024,
        }


def arm(path: Path, shuffle: str, batch_size: int, group: Path | None) -> dict[str, Any]:
    """An epoch in a process of its own, in this cgroup."""
    command = [sys.executable, __file__, str(path), "--epoch", shuffle, "--batch-size", str(batch_size)]
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"an epoch of {shuffle!r} ended with exit code {done.returncode}")
    return dict(json.loads(done.stdout))


def recall(store: Store) -> None:
    """Have all of the store's pages in memory, on this process's account."""
    for shard in store.manifest.shards:
        with open(store.paths.root / shard.file, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def measure(store: Store, batch_size: int, repeats: int, room: int) -> dict[str, Any]:
    """What each arm gave, medians, and the rates with the bound over those without."""
    root = store.paths.root
    limit = arm(root, "full", batch_size, None)["anonymous"] + room
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for state, prepare in (("cold", forget), ("warm", recall)):
            for shuffle in SHUFFLES:
                prepare(store)
                found.setdefault(f"{shuffle}, {state}", []).append(arm(root, shuffle, batch_size, None))
                prepare(store)
                with memory_cgroup(limit) as group:
                    found.setdefault(f"{shuffle}, {state}, bounded", []).append(arm(root, shuffle, batch_size, group))
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
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--room", type=int, default=300, help="MB beside ring and interpreter")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--epoch", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.epoch:
        print(json.dumps(epoch(asked.store, asked.epoch, asked.batch_size)))
        return 0
    try:
        with memory_cgroup(1 << 30):
            pass
    except NoCgroup as why:
        print(f"no memory cgroup can be made here, and nothing is bounded: {why}")
        return 0
    store = open_store(asked.store or synthetic_store(SCRATCH / "cold.store", ROWS))
    here = conditions(len(store), "cold and warm")
    facts = {"conditions": here, **measure(store, asked.batch_size, asked.repeats, asked.room * 10**6)}
    print(heading(here))
    nbytes = len(store) * store.manifest.row_bytes
    print(f"{nbytes / 1e9:.1f} GB an epoch; bounded: {facts['limit'] / 1e6:.0f} MB of memory, page cache counted in\n")
    print(
        "| `shuffle` | pages | GB/s | bounded over free | read, a byte | processor, s/GB |\n|---|---|---|---|---|---|"
    )
    for name, share in facts["bounded_over_free"].items():
        free, bounded = (facts["arms"][f"{name}{suffix}"] for suffix in ("", ", bounded"))
        pairs = [f"{free[key] * unit:.2f}, {bounded[key] * unit:.2f}" for key, unit in UNITS.items()]
        pairs.insert(1, ratio_text(share))
        print(f"| {name.replace(', ', ' | ')} | {' | '.join(pairs)} |")
    if asked.json:
        print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
