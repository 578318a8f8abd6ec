"""How fast batches come from a disk whose rows are not in memory, beside what fio gets from the same files.

    python bench/cold.py [STORE] [--repeats 5] [--batch-size 256] [--json]

Each repeat runs in turn, the store's pages dropped before each arm (posix_fadvise, no root needed): fio reading as many
bytes past the page cache with the Loader's pattern and block size, many reads at a time; the Loader, one epoch. Without
STORE, 4 GB of drawn rows are kept in build/cold.store. Needs fio (apt-get install fio).
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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from synthetic import synthetic_store

from decodeonce import Loader, Store, open_store
from decodeonce.store.manifest import DATA_OFFSET

SCRATCH = Path(__file__).resolve().parent.parent / "build"
ROWS = 80 * 256


def forget(store: Store) -> None:
    """Drop the store's pages from the page cache; those that some process has mapped would stay."""
    for shard in store.manifest.shards:
        fd = os.open(store.paths.root / shard.file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with suppress(BlockingIOError):
            os.preadv(fd, [bytearray(1)], shard.bytes // 2, os.RWF_NOWAIT)
            raise SystemExit(f"{shard.file}: its pages cannot be dropped; does another process read it?")
        os.close(fd)


def fio_rate(store: Store, pattern: str, block: int, depth: int) -> float:
    """Bytes a second of fio on the first shard's rows."""
    shard = store.manifest.shards[0]
    nbytes = (shard.bytes - DATA_OFFSET) // block * block
    options = [f"--rw={pattern}", f"--bs={block}", f"--iodepth={depth}", f"--offset={DATA_OFFSET}", f"--size={nbytes}"]
    options += ["--direct=1", "--ioengine=libaio", "--readonly", "--name=rows", "--output-format=json"]
    command = ["fio", f"--filename={store.paths.root / shard.file}", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def loader_rate(path: Path, batch_size: int, shuffle: str, reader: str) -> float:
    """Bytes a second of an epoch, its start included."""
    with Loader(path, batch_size=batch_size, shuffle=shuffle, reader=reader) as loader:
        start = time.perf_counter()
        for _ in loader:
            pass
        seconds = time.perf_counter() - start
        print(f"    {shuffle:6s} {reader:5s} {loader.bottleneck()}", flush=True)
        return float(loader.stats()["bytes"] / seconds)


def measure(store: Store, batch_size: int, repeats: int) -> dict[str, Any]:
    """Rates of all arms, and of the Loader's over fio's with the same pattern."""
    row, block = store.manifest.row_bytes, store.manifest.row_bytes * store.manifest.block_rows
    pairs = {"full": "fio random rows", "window": "fio random blocks", "none": "fio in order"}
    arms: dict[str, Callable[[], float]] = {
        "fio random rows": partial(fio_rate, store, "randread", row, 32),
        "fio random blocks": partial(fio_rate, store, "randread", block, 4),
        "fio in order": partial(fio_rate, store, "read", block, 4),
    }
    for reader in ("pread", "mmap"):
        arms |= {f"{name} {reader}": partial(loader_rate, store.paths.root, batch_size, name, reader) for name in pairs}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            forget(store)
            rates[name].append(arm())
    ratios = {
        name: statistics.median(a / b for a, b in zip(rates[name], rates[pairs[name.split()[0]]], strict=True))
        for name in arms
        if not name.startswith("fio")
    }
    return {"bytes_per_s": {k: statistics.median(v) for k, v in rates.items()}, "ratio_to_fio": ratios}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    asked = parser.parse_args()
    if not shutil.which("fio"):
        parser.exit(0, "fio is not here (apt-get install fio): cold reads are not measured\n")
    store = open_store(asked.store or synthetic_store(SCRATCH / "cold.store", ROWS))
    facts = measure(store, asked.batch_size, asked.repeats)
    if asked.json:
        print(json.dumps(facts))
        return
    print(f"{len(store) * store.manifest.row_bytes / 1e9:.1f} GB an epoch, nothing of it in memory")
    for name, rate in facts["bytes_per_s"].items():
        ratio = facts["ratio_to_fio"].get(name)
        print(f"{name:18s} {rate / 1e9:5.2f} GB/s" + (f" {ratio:6.3f} of fio with its pattern" if ratio else ""))


if __name__ == "__main__":
    main()
