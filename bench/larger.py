"""A store larger than memory: built, verified, and read for two epochs in each order; rates, and memory over time.

    python bench/larger.py [SRC] [--rows 180000] [--size 256] [--scratch build] [--apt] [--json]

SRC is a tree `train/<wnid>/*.JPEG`, whose images are linked until there are --rows; without it a sample tree is drawn
under build/. 180,000 rows of 256x256 are 35 GB: take at least 1.5 times the memory of the machine, and a disk with
room for it. `prep build` and `prep verify` run as usual. Then a process for each order drops the store's pages and
runs two epochs; of the second, what is left in memory of the first is not read again. Before each, fio reads in the
ways that a sweep found fastest (bench/cold.py has the details). What storage gave over the best of them is the share
of the disk's best.

Every process is watched from outside. Exit code 1 if one grew by more than bench/soak.py allows. The store is removed
at the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from build import find_tree
from cold import (
    NO_FIO,
    SCRATCH,
    SHUFFLES,
    Reads,
    best_of,
    finalists,
    find_fio,
    fio_rate,
    forget,
    pace,
    rate_text,
    storage,
    sweep,
)
from conditions import conditions, heading
from soak import Looks, build_and_verify, print_growth, table, watch

from decodeonce import Loader, open_store

EPOCHS = 2
SERIES = 10


def epochs(path: Path, shuffle: Any, batch_size: int) -> list[list[float]]:
    """The pace of each of two epochs in a row; of the first, nothing is in memory."""
    store = open_store(path)
    forget(store)
    with Loader(path, batch_size=batch_size, shuffle=shuffle) as loader:
        print(loader.stats()["reader"], flush=True)  # from here on it is watched
        return [list(pace(loader, store, shuffle)) for _ in range(EPOCHS)]


def over_time(looks: Looks) -> str:
    """Anonymous memory in MB: the median of each tenth of the time."""
    ends = [len(looks) * tenth // SERIES for tenth in range(SERIES + 1)]
    parts = [[seen.anonymous for _, seen in looks[a:b]] for a, b in pairwise(ends) if a < b]
    return " ".join(f"{statistics.median(part):.0f}" for part in parts)


def measure(source: Path, scratch: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Build, verify and read; the rates, and what each process held."""
    here = conditions(asked.rows, "two epochs of each order, the first of them cold")
    processes, path = build_and_verify(source, scratch, asked), scratch / "store"
    store = open_store(path)
    nbytes = len(store) * store.manifest.row_bytes
    seconds = {name: processes[f"`prep {name}`"][-1][0] for name in ("build", "verify")}
    fio: dict[Reads, list[float]] = {}
    if asked.fio:
        print("fio's sweep …", file=sys.stderr, flush=True)
        fio = {reads: [] for reads in finalists(store, sweep(store, asked.seconds))}
    paces = {}
    for shuffle in SHUFFLES:
        for reads, rates in fio.items():
            rates.append(fio_rate(store, reads, asked.seconds))
        print(f"two epochs of {shuffle!r} …", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, str(path), "--epochs", shuffle, "--batch-size", str(asked.batch_size)]
        found, output = watch([*command], asked.every, announced=True)
        name = f'Loader, `shuffle="{shuffle}"`'
        processes[name], paces[name] = found[""], json.loads(output.splitlines()[-1])
    best = best_of(fio, list(fio)) if fio else None
    return {
        "conditions": here | {"images": len(store)},
        "storage": f"{storage(path)}, {asked.fio or 'no fio'}",
        "bytes": nbytes,
        "build_images_per_s": len(store) / seconds["build"],
        "verify_bytes_per_s": nbytes / seconds["verify"],
        "disk": best and {"reads": str(best), "bytes_per_s": fio[best]},
        "epochs": paces,
        "processes": processes,
    }


def rates_table(facts: dict[str, Any]) -> str:
    """The rates as Markdown."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size, disk = f"{facts['bytes'] / 1e9:.1f} GB, {facts['bytes'] / memory:.2f} times the memory", facts["disk"]
    lines = [
        f"{heading(facts['conditions'])}{facts['storage']}; {size}",
        f"`prep build`: {facts['build_images_per_s']:,.0f} images/s",
        f"`prep verify`: {facts['verify_bytes_per_s'] / 1e9:.2f} GB/s",
        f"the disk's best, GB/s: {rate_text(disk['bytes_per_s'])}, {disk['reads']}" if disk else NO_FIO,
        "",
        "| | GB/s | read per byte | storage, GB/s | of the disk's best |",
        "|---|---|---|---|---|",
    ]
    for name, paces in facts["epochs"].items():
        for epoch, (rate, read) in enumerate(paces):
            share = f"{rate * read / statistics.median(disk['bytes_per_s']):.2f}" if disk else ""
            cells = f"{rate / 1e9:.2f} | {read:.2f} | {rate * read / 1e9:.2f} | {share}"
            lines.append(f"| {name}, epoch {epoch} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=180_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3, help="of each fio (default: 3)")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two looks (default: 0.5)")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="a folder on the disk (default: build)")
    parser.add_argument("--apt", action="store_true", help="install fio if it is missing; needs root")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--epochs", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.epochs:
        print(json.dumps(epochs(asked.source, asked.epochs, asked.batch_size)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked.fio = find_fio(install=asked.apt)
    if not asked.fio:
        print(NO_FIO, file=sys.stderr)
    source = find_tree(asked.source)
    asked.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="larger-", dir=asked.scratch))
    try:
        facts = measure(source, scratch, asked)
    finally:
        shutil.rmtree(scratch)
    processes = facts["processes"]
    print(rates_table(facts), table(processes), sep="\n\n", end="\n\n")
    for name, looks in processes.items():
        print(f"{name}, anonymous memory in MB, medians of each tenth of its time: {over_time(looks)}")
    return print_growth(facts, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
