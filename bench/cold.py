"""How fast batches come from a disk whose rows are not in memory, beside what fio gets from the same files.

    python bench/cold.py [STORE] [--repeats 5] [--batch-size 256] [--json]

Each repeat runs in turn, the store's pages dropped before each arm (posix_fadvise, no root needed): fio, as many bytes
in the Loader's pattern and block size, past the page cache with many reads under way, and through it with many threads;
the Loader, one epoch. Ratios are to the faster of the two fio arms of a pattern, repeat by repeat. Without STORE, 4 GB
of drawn rows are kept in build/cold.store. Needs fio (apt-get install fio).
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

from synthetic import synthetic_store

from decodeonce import Loader, Store, open_store
from decodeonce.store.manifest import DATA_OFFSET

SCRATCH = Path(__file__).resolve().parent.parent / "build"
ROWS = 80 * 256
DROPS = 50


def forget(store: Store) -> None:
    """Drop the store's pages from the page cache; those that some process has mapped would stay."""
    for shard in store.manifest.shards:
        fd = os.open(store.paths.root / shard.file, os.O_RDONLY)
        os.fsync(fd)
        for _ in range(DROPS):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if is_cold(fd, shard.bytes // 2):
                break
            time.sleep(0.1)  # the kernel passes over pages that it is busy with
        else:
            raise SystemExit(f"{shard.file}: its pages cannot be dropped; does another process read it?")
        os.close(fd)


def is_cold(fd: int, offset: int) -> bool:
    """Whether this byte of a file is not in memory."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError as error:
        raise SystemExit(f"this file system does not tell what is in memory: {error}") from error
    return False


def fio_rate(store: Store, pattern: str, block: int, depth: int, *, direct: bool) -> float:
    """Bytes a second of fio on the first shard's rows, each of them once, `depth` reads at a time."""
    shard = store.manifest.shards[0]
    threads = 1 if direct else depth
    nbytes = (shard.bytes - DATA_OFFSET) // threads // block * block
    options = [f"--rw={pattern}", f"--bs={block}", f"--offset={DATA_OFFSET}", f"--size={nbytes}", "--readonly"]
    options += [f"--numjobs={threads}", f"--offset_increment={nbytes}", "--thread", "--group_reporting", "--name=rows"]
    options += ["--direct=1", "--ioengine=libaio", f"--iodepth={depth}"] if direct else ["--ioengine=psync"]
    command = ["fio", f"--filename={store.paths.root / shard.file}", *options, "--output-format=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def loader_rate(path: Path, batch_size: int, shuffle: str, reader: str) -> float:
    """Bytes a second of an epoch, its start included."""
    with Loader(path, batch_size=batch_size, shuffle=shuffle, reader=reader) as loader:
        start = time.perf_counter()
        for _ in loader:
            pass
        return float(loader.stats()["bytes"] / (time.perf_counter() - start))


def measure(store: Store, batch_size: int, repeats: int) -> dict[str, Any]:
    """Rates of all arms, and of the Loader's over fio's with the same pattern."""
    row, block = store.manifest.row_bytes, store.manifest.row_bytes * store.manifest.block_rows
    patterns = {"full": ("randread", row, 32), "window": ("randread", block, 4), "none": ("read", block, 4)}
    arms: dict[str, Callable[[], float]] = {}
    for name, pattern in patterns.items():
        for way in ("direct", "buffered"):
            arms[f"{name} fio {way}"] = partial(fio_rate, store, *pattern, direct=way == "direct")
        for reader in ("pread", "mmap"):
            arms[f"{name} {reader}"] = partial(loader_rate, store.paths.root, batch_size, name, reader)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            forget(store)
            rates[name].append(arm())
    ratios = {}
    for name, values in rates.items():
        pattern = name.split()[0]
        best = map(max, rates[f"{pattern} fio direct"], rates[f"{pattern} fio buffered"])
        ratios[name] = statistics.median(a / b for a, b in zip(values, best, strict=True))
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
        print(f"{name:20s} {rate / 1e9:5.2f} GB/s {facts['ratio_to_fio'][name]:6.3f} of fio's best with its pattern")


if __name__ == "__main__":
    main()
