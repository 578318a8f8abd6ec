"""Compare the Loader's rates on a store that is not in memory with the fastest that fio reads from the same disk.

    python -m bench.cold [STORE] [--repeats 5] [--batch-size 256] [--seconds 3] [--apt] [--json]

First, fio reads the store's first shard with every engine, block size and queue depth, at random and in order, for
--seconds each: libaio and io_uring bypass the page cache, and psync (one thread per read) reads through it. fio reads
into huge pages, as the Loader does: into pages of 4 KiB, the same disk gave 1.2 GB/s instead of 2.1. Then the fastest
of these are repeated in turn with the Loader's epochs. The store's pages are dropped before each arm, with
posix_fadvise, which does not need root.

The start and the end of an epoch are not timed, for as many batches as the Loader reads ahead: at the start no batch is
ready, and at the end the Loader has nothing left to request.

Ratios are ratios of the medians in the table, followed by their range over the repeats. Without STORE, 8 GB of random
rows are created in build/cold.store and kept. This script needs fio; --apt installs it, as root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bench.conditions import conditions, heading, ratio, ratio_text
from bench.synthetic import synthetic_store
from decodeonce import Loader, Store, open_store
from decodeonce.loader import readers
from decodeonce.loader.order import WINDOW_BLOCKS, Shuffle
from decodeonce.loader.partition import AHEAD_BYTES
from decodeonce.store.files import PAGE
from decodeonce.store.manifest import DATA_OFFSET

SCRATCH = Path(__file__).resolve().parent.parent / "build"
ROWS = 160 * 256
DROPS = 50
ENGINES = ("libaio", "io_uring", "psync")
DEPTHS = (1, 4, 16, 64, 256)
MAX_IN_FLIGHT = 256 << 20  # bytes that one fio reads at a time
SHUFFLES: tuple[Shuffle, ...] = ("full", "window", "none")
READERS = ("pread", "mmap", "direct")  # the last one keeps no row in the page cache
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
FINALISTS = 3
SLOTS = 5  # of a Loader: its prefetch and two more


class Reads(NamedTuple):
    """Settings of fio: rw ("randread" or "read"), engine, block size and number of reads in flight."""

    rw: str
    engine: str
    block: int
    depth: int

    def __str__(self) -> str:
        order = "at random" if self.rw == "randread" else "in order"
        return f"{self.block >> 10:,} KiB {order}, {self.engine}, depth {self.depth}"


class EpochRate(NamedTuple):
    """Results of an epoch without its start and end.

    Attributes:
        rate: Bytes/s.
        read: Bytes read from storage per byte of the store.
        processor: Seconds of processor time per byte.
    """

    rate: float
    read: float
    processor: float


def find_fio(*, install: bool) -> str:
    """Return the version of fio; "" if it is missing. `install`: install it first."""
    if install and not shutil.which("fio"):
        for command in (["update", "-q"], ["install", "-qy", "--no-install-recommends", "fio"]):
            subprocess.run(["apt-get", *command], check=True, stdout=sys.stderr)
    if not shutil.which("fio"):
        return ""
    return subprocess.run(["fio", "--version"], check=True, capture_output=True, text=True).stdout.strip()


COLD = "cold: no page of the store in memory when an epoch starts"
NO_FIO = "fio is missing, so there is nothing to compare with. Run: apt-get install fio (or pass --apt, as root)"


def drop_pages(store: Store) -> None:
    """Drop the store's pages from the page cache; exit if that fails. Pages that a process has mapped are kept."""
    for shard in store.manifest.shards:
        fd = os.open(store.paths.root / shard.file, os.O_RDONLY)
        os.fsync(fd)
        for _ in range(DROPS):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if is_cold(fd, shard.bytes // 2):
                break
            time.sleep(0.1)  # the kernel skips pages that are in use
        else:
            raise SystemExit(
                f"{shard.file}: cannot drop its pages. Stop other processes that read the store, and retry"
            )
        os.close(fd)


def is_cold(fd: int, offset: int) -> bool:
    """Return whether this byte of a file is not in memory."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError as error:
        raise SystemExit(f"this file system does not report which pages are in memory: {error}") from error
    return False


def storage_name(folder: Path) -> str:
    """Return the file system and the device of a folder."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        if mount.split()[2] == number:
            kind, name = mount.partition(" - ")[2].split()[:2]
            return f"{kind} on {name}"
    return "an unknown device"


def own_proc_value(file: str, key: str) -> int:
    """Return a number from a file in /proc/self."""
    lines = Path("/proc/self", file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def block_bytes(store: Store) -> tuple[int, int]:
    """Return the bytes of a row and of a block, rounded up to whole pages, as reads that bypass the page cache need."""
    row = store.manifest.row_bytes
    return -(-row // PAGE) * PAGE, -(-row * store.manifest.block_rows // PAGE) * PAGE


def all_reads(store: Store) -> Iterator[Reads]:
    """Yield all settings of the sweep: every engine, block size and depth, at random and in order."""
    row, block = block_bytes(store)
    most = min(MAX_IN_FLIGHT, store.manifest.shards[0].bytes // 4)
    for rw, blocks in (("randread", (row, 1 << 20, block)), ("read", (1 << 20, block))):
        for engine in ENGINES:
            for size in sorted(set(blocks)):
                for depth in DEPTHS:
                    if depth * size <= most:
                        yield Reads(rw, engine, size, depth)


def fio_rate(store: Store, reads: Reads, seconds: float) -> float:
    """Run fio on the rows of the first shard, for at most `seconds`; return bytes/s. It reads no row twice."""
    shard = store.manifest.shards[0]
    threads = reads.depth if reads.engine == "psync" else 1
    nbytes = (shard.bytes - DATA_OFFSET) // threads // reads.block * reads.block
    options = [f"--rw={reads.rw}", f"--bs={reads.block}", f"--offset={DATA_OFFSET}", f"--size={nbytes}", "--readonly"]
    options += [f"--numjobs={threads}", f"--offset_increment={nbytes}", "--thread", "--group_reporting", "--name=rows"]
    options += [f"--ioengine={reads.engine}", f"--runtime={seconds * 1000:.0f}ms", "--randrepeat=0"]
    options += [] if reads.engine == "psync" else ["--direct=1", f"--iodepth={reads.depth}"]
    command = ["fio", f"--filename={store.paths.root / shard.file}", *options, "--output-format=json"]
    drop_pages(store)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **HUGE_PAGES})
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def sweep(store: Store, seconds: float) -> dict[Reads, float]:
    """Measure all settings once; return their bytes/s. Engines that do not work here are reported on stderr."""
    rates: dict[Reads, float] = {}
    failed: set[str] = set()
    for reads in all_reads(store):
        if reads.engine in failed:
            continue
        try:
            rates[reads] = fio_rate(store, reads, seconds)
        except subprocess.CalledProcessError as error:
            failed.add(reads.engine)
            print(f"fio cannot use {reads.engine} here: {error.stderr.strip()}", file=sys.stderr)
    if not rates:
        raise SystemExit(f"{store.paths.root}: fio cannot read it with any engine")
    return rates


def finalists(rates: dict[Reads, float]) -> list[Reads]:
    """Return the fastest settings."""
    return sorted(rates, key=rates.__getitem__, reverse=True)[:FINALISTS]


def read_ahead_batches(store: Store, batch_size: int, shuffle: str) -> int:
    """Return how many batches the Loader reads ahead, rounded up."""
    row_bytes = store.manifest.row_bytes
    ahead = AHEAD_BYTES + SLOTS * batch_size * row_bytes
    if shuffle == "window":
        ahead += min(len(store), WINDOW_BLOCKS * store.manifest.block_rows) * row_bytes
    return -(-ahead // (batch_size * row_bytes))


def timed_epoch(loader: Loader, store: Store, shuffle: str) -> EpochRate:
    """Run one epoch and time it without its first and last batches (see the module's docstring)."""
    untimed = read_ahead_batches(store, loader.batch_size, shuffle)
    timed = len(loader) - 2 * untimed
    if timed <= 0:
        found = f"{len(loader)} batches of {loader.batch_size}, expected more than {2 * untimed}"
        raise SystemExit(f"{store.paths.root}: an epoch has {found}; use a larger store or a smaller --batch-size")
    batches = iter(loader)
    deque(islice(batches, untimed), maxlen=0)
    start, before, used = time.perf_counter(), own_proc_value("io", "read_bytes"), time.process_time()
    deque(islice(batches, timed), maxlen=0)
    seconds, read = time.perf_counter() - start, own_proc_value("io", "read_bytes") - before
    processor = time.process_time() - used
    deque(batches, maxlen=0)
    nbytes = timed * loader.batch_size * store.manifest.row_bytes
    return EpochRate(nbytes / seconds, read / nbytes, processor / nbytes)


def cold_epoch(store: Store, batch_size: int, shuffle: Any, reader: Any, pixels: Any = "rgb") -> EpochRate:
    """Drop the store's pages, then run and time one epoch."""
    drop_pages(store)
    readers.KEPT_MEMORY = 0.0
    with Loader(store.paths.root, batch_size=batch_size, shuffle=shuffle, reader=reader, pixels=pixels) as loader:
        return timed_epoch(loader, store, shuffle)


def measure(store: Store, batch_size: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Run the sweep, then repeat fio's finalists and the Loader in turn; return all rates."""
    once = sweep(store, seconds)
    fio: dict[Reads, list[float]] = {reads: [] for reads in finalists(once)}
    loads: dict[tuple[str, str], list[EpochRate]] = {(order, reader): [] for order in SHUFFLES for reader in READERS}
    for _ in range(repeats):
        for reads, rates in fio.items():
            rates.append(fio_rate(store, reads, seconds))
        for (shuffle, reader), epochs in loads.items():
            epochs.append(cold_epoch(store, batch_size, shuffle, reader))
    best = fastest(fio)
    loader = {}
    for (shuffle, reader), epochs in loads.items():
        rates = [epoch.rate for epoch in epochs]
        loader[f'`shuffle="{shuffle}"`, {reader}'] = {
            "bytes_per_s": rates,
            "of_best": ratio(rates, fio[best]),
            "read_per_byte": statistics.median(epoch.read for epoch in epochs),
            "processor_s_per_gb": statistics.median(epoch.processor for epoch in epochs) * 1e9,
        }
    return {
        "sweep": {str(reads): rate for reads, rate in once.items()},
        "fio": {str(reads): rates for reads, rates in fio.items()},
        "best": str(best),
        "loader": loader,
    }


def fastest(rates: dict[Reads, list[float]]) -> Reads:
    """Return the settings with the largest median rate."""
    return max(rates, key=lambda reads: statistics.median(rates[reads]))


def rate_text(rates: list[float]) -> str:
    """Format rates as their median in GB/s with the range: "1.20 (1.10 to 1.30)"."""
    median, least, most = (rate / 1e9 for rate in (statistics.median(rates), min(rates), max(rates)))
    return f"{median:.2f} ({least:.2f} to {most:.2f})"


def table(facts: dict[str, Any]) -> str:
    """Return the table for docs/reference/benchmarks.md."""
    lines = ["| | GB/s | / fastest fio | read per byte | processor s/GB |", "|---|---|---|---|---|"]
    for name, rates in sorted(facts["fio"].items(), key=lambda item: -statistics.median(item[1])):
        lines.append(f"| fio: {name} | {rate_text(rates)} | | | |")
    for name, found in facts["loader"].items():
        cells = [name, rate_text(found["bytes_per_s"]), ratio_text(found["of_best"])]
        cells += [f"{found['read_per_byte']:.2f}", f"{found['processor_s_per_gb']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3, help="seconds per run of fio (default: 3)")
    parser.add_argument("--apt", action="store_true", help="install fio if it is missing; needs root")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    version = find_fio(install=options.apt)
    if not version:
        print(NO_FIO)
        return 0
    store = open_store(options.store or synthetic_store(SCRATCH / "cold.store", ROWS))
    storage = f"{storage_name(store.paths.root)}, {version}"
    facts: dict[str, Any] = {"conditions": conditions(len(store), COLD), "storage": storage}
    facts |= measure(store, options.batch_size, options.repeats, options.seconds)
    size = f"{len(store) * store.manifest.row_bytes / 1e9:.1f} GB per epoch"
    print(f"{heading(facts['conditions'])}{facts['storage']}; {size}, {options.repeats} repeats")
    print(f"The fastest of {len(facts['sweep'])} settings of fio: {facts['best']}\n\n{table(facts)}")
    if options.json:
        print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
