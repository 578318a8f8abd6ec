"""How fast batches come from a disk whose rows are not in memory, compared with the best that fio reads there.

    python bench/cold.py [STORE] [--repeats 5] [--batch-size 256] [--seconds 3] [--apt] [--json]

First fio reads the store's first shard with every engine, block size and queue depth, random and in order, for
--seconds each: libaio and io_uring past the page cache, and psync (a thread for each read) through it. The fastest
are then repeated in turn with the Loader's epochs. The store's pages are dropped before each arm (posix_fadvise,
which needs no root). The clock leaves out the start and the end of an epoch, as long as the Loader reads ahead: first
nothing is ready, and last there is nothing left to ask for.

A ratio is that of the medians in the table; behind it is the range of the repeats. Without STORE, 8 GB of random rows
are kept in build/cold.store. Needs fio: --apt installs it, as root.
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

from conditions import conditions, heading, ratio, ratio_text
from synthetic import synthetic_store

from decodeonce import Loader, Store, open_store
from decodeonce.loader.order import WINDOW_BLOCKS
from decodeonce.loader.read_ahead import AHEAD_BYTES
from decodeonce.store.manifest import DATA_OFFSET
from decodeonce.store.shard_file import PAGE

SCRATCH = Path(__file__).resolve().parent.parent / "build"
ROWS = 160 * 256
DROPS = 50
ENGINES = ("libaio", "io_uring", "psync")
DEPTHS = (1, 4, 16, 64, 256)
MOST_UNDER_WAY = 256 << 20  # bytes that one fio reads at a time
SHUFFLES = ("full", "window", "none")
READERS = ("pread", "mmap")
FINALISTS = 3  # of each order's pattern, and of all
RING = 5  # batches: a Loader's prefetch and two more


class Reads(NamedTuple):
    """A way for fio to read: rw ("randread" or "read"), engine, block size and number of reads under way."""

    rw: str
    engine: str
    block: int
    depth: int

    def __str__(self) -> str:
        order = "at random" if self.rw == "randread" else "in order"
        return f"{self.block >> 10:,} KiB {order}, {self.engine}, depth {self.depth}"


class Pace(NamedTuple):
    """What an epoch gave between its start and its end: bytes/s, and bytes that storage read for each of them."""

    rate: float
    read: float


def find_fio(*, install: bool) -> str:
    """The version of fio, "" if it is missing and `install` is not set."""
    if install and not shutil.which("fio"):
        for command in (["update", "-q"], ["install", "-qy", "--no-install-recommends", "fio"]):
            subprocess.run(["apt-get", *command], check=True, stdout=sys.stderr)
    if not shutil.which("fio"):
        return ""
    return subprocess.run(["fio", "--version"], check=True, capture_output=True, text=True).stdout.strip()


COLD = "cold: no page of the store in memory when an epoch starts"
NO_FIO = "fio is missing, and there is nothing to compare with. Run: apt-get install fio (or pass --apt, as root)"


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


def storage(folder: Path) -> str:
    """The file system and the device that a folder lies on."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        if mount.split()[2] == number:
            kind, name = mount.partition(" - ")[2].split()[:2]
            return f"{kind} on {name}"
    return "an unknown device"


def own(file: str, key: str) -> int:
    """A number that /proc has of this process."""
    lines = Path("/proc/self", file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def block_bytes(store: Store) -> tuple[int, int]:
    """Bytes of a row and of a block, in whole pages, as reads past the page cache need."""
    row = store.manifest.row_bytes
    return -(-row // PAGE) * PAGE, -(-row * store.manifest.block_rows // PAGE) * PAGE


def all_reads(store: Store) -> Iterator[Reads]:
    """The sweep: every engine, block size and depth, at random and in order."""
    row, block = block_bytes(store)
    most = min(MOST_UNDER_WAY, store.manifest.shards[0].bytes // 4)
    for rw, blocks in (("randread", (row, 1 << 20, block)), ("read", (1 << 20, block))):
        for engine in ENGINES:
            for size in sorted(set(blocks)):
                for depth in DEPTHS:
                    if depth * size <= most:
                        yield Reads(rw, engine, size, depth)


def has_pattern(store: Store, shuffle: str, reads: Reads) -> bool:
    """Whether fio reads as the Loader does in this order: rows at random, blocks at random, or all in order."""
    row, block = block_bytes(store)
    if shuffle == "none":
        return reads.rw == "read"
    return (reads.rw, reads.block) == ("randread", row if shuffle == "full" else block)


def fio_rate(store: Store, reads: Reads, seconds: float) -> float:
    """Bytes a second of fio on the first shard's rows, none of them twice, for so long at most."""
    shard = store.manifest.shards[0]
    threads = reads.depth if reads.engine == "psync" else 1
    nbytes = (shard.bytes - DATA_OFFSET) // threads // reads.block * reads.block
    options = [f"--rw={reads.rw}", f"--bs={reads.block}", f"--offset={DATA_OFFSET}", f"--size={nbytes}", "--readonly"]
    options += [f"--numjobs={threads}", f"--offset_increment={nbytes}", "--thread", "--group_reporting", "--name=rows"]
    options += [f"--ioengine={reads.engine}", f"--runtime={seconds * 1000:.0f}ms", "--randrepeat=0"]
    options += [] if reads.engine == "psync" else ["--direct=1", f"--iodepth={reads.depth}"]
    command = ["fio", f"--filename={store.paths.root / shard.file}", *options, "--output-format=json"]
    forget(store)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def sweep(store: Store, seconds: float) -> dict[Reads, float]:
    """The rates of all ways to read, once each; says on stderr which engines do not work here."""
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
        raise SystemExit(f"{store.paths.root}: fio cannot read it")
    return rates


def finalists(store: Store, rates: dict[Reads, float]) -> list[Reads]:
    """The fastest of all ways to read, and of those with the pattern of each order."""
    fastest = sorted(rates, key=rates.__getitem__, reverse=True)
    chosen = fastest[:FINALISTS]
    for shuffle in SHUFFLES:
        chosen += [reads for reads in fastest if has_pattern(store, shuffle, reads)][:FINALISTS]
    return list(dict.fromkeys(chosen))


def settling_batches(store: Store, batch_size: int, shuffle: str) -> int:
    """How many batches the Loader reads ahead: so many are left out at the start and at the end of an epoch."""
    row_bytes = store.manifest.row_bytes
    ahead = AHEAD_BYTES + RING * batch_size * row_bytes
    if shuffle == "window":
        ahead += min(len(store), WINDOW_BLOCKS * store.manifest.block_rows) * row_bytes
    return -(-ahead // (batch_size * row_bytes))


def pace(loader: Loader, store: Store, shuffle: str) -> Pace:
    """Run one epoch; what it gave between its start and its end."""
    ends = settling_batches(store, loader.batch_size, shuffle)
    middle = len(loader) - 2 * ends
    if middle <= 0:
        found = f"{len(loader)} batches of {loader.batch_size}, expected more than {2 * ends}"
        raise SystemExit(f"{store.paths.root}: an epoch has {found}; take a larger store or a smaller --batch-size")
    batches = iter(loader)
    deque(islice(batches, ends), maxlen=0)
    start, before = time.perf_counter(), own("io", "read_bytes")
    deque(islice(batches, middle), maxlen=0)
    seconds, read = time.perf_counter() - start, own("io", "read_bytes") - before
    deque(batches, maxlen=0)
    nbytes = middle * loader.batch_size * store.manifest.row_bytes
    return Pace(nbytes / seconds, read / nbytes)


def cold_epoch(store: Store, batch_size: int, shuffle: Any, reader: Any) -> Pace:
    """The pace of one epoch of which nothing is in memory."""
    forget(store)
    with Loader(store.paths.root, batch_size=batch_size, shuffle=shuffle, reader=reader) as loader:
        return pace(loader, store, shuffle)


def measure(store: Store, batch_size: int, repeats: int, seconds: float) -> dict[str, Any]:
    """The sweep, and the rates of fio's finalists and of the Loader, repeat by repeat."""
    once = sweep(store, seconds)
    fio: dict[Reads, list[float]] = {reads: [] for reads in finalists(store, once)}
    loads: dict[tuple[str, str], list[Pace]] = {(order, reader): [] for order in SHUFFLES for reader in READERS}
    for _ in range(repeats):
        for reads, rates in fio.items():
            rates.append(fio_rate(store, reads, seconds))
        for (shuffle, reader), paces in loads.items():
            paces.append(cold_epoch(store, batch_size, shuffle, reader))
    best = best_of(fio, list(fio))
    loader = {}
    for (shuffle, reader), paces in loads.items():
        rates = [found.rate for found in paces]
        alike = best_of(fio, [reads for reads in fio if has_pattern(store, shuffle, reads)])
        loader[f'`shuffle="{shuffle}"`, {reader}'] = {
            "bytes_per_s": rates,
            "of_best": ratio(rates, fio[best]),
            "of_best_alike": ratio(rates, fio[alike]),
            "read_per_byte": statistics.median(found.read for found in paces),
        }
    return {
        "sweep": {str(reads): rate for reads, rate in once.items()},
        "fio": {str(reads): rates for reads, rates in fio.items()},
        "best": str(best),
        "loader": loader,
    }


def best_of(rates: dict[Reads, list[float]], among: list[Reads]) -> Reads:
    """The way to read that has the largest median."""
    return max(among, key=lambda reads: statistics.median(rates[reads]))


def rate_text(rates: list[float]) -> str:
    """Rates as their median in GB/s, with the range."""
    middle, least, most = (rate / 1e9 for rate in (statistics.median(rates), min(rates), max(rates)))
    return f"{middle:.2f} ({least:.2f} to {most:.2f})"


def table(facts: dict[str, Any]) -> str:
    """The Markdown table of docs/benchmarks.md."""
    lines = ["| | GB/s | over fio's best | over fio's best in this pattern | read per byte |", "|---|---|---|---|---|"]
    for name, rates in sorted(facts["fio"].items(), key=lambda item: -statistics.median(item[1])):
        lines.append(f"| fio: {name} | {rate_text(rates)} | | | |")
    for name, found in facts["loader"].items():
        ratios = (ratio_text(found[key]) for key in ("of_best", "of_best_alike"))
        lines.append(
            f"| {name} | {rate_text(found['bytes_per_s'])} | {' | '.join(ratios)} | {found['read_per_byte']:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3, help="of each fio (default: 3)")
    parser.add_argument("--apt", action="store_true", help="install fio if it is missing; needs root")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    asked = parser.parse_args()
    version = find_fio(install=asked.apt)
    if not version:
        print(NO_FIO)
        return 0
    store = open_store(asked.store or synthetic_store(SCRATCH / "cold.store", ROWS))
    facts = {"conditions": conditions(len(store), COLD), "storage": f"{storage(store.paths.root)}, {version}"}
    facts |= measure(store, asked.batch_size, asked.repeats, asked.seconds)
    nbytes = len(store) * store.manifest.row_bytes
    print(f"{heading(facts['conditions'])}{facts['storage']}; {nbytes / 1e9:.1f} GB per epoch, {asked.repeats} repeats")
    print(f"The best of {len(facts['sweep'])} ways for fio to read: {facts['best']}\n\n{table(facts)}")
    if asked.json:
        print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
