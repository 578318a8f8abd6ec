"""Build and verify a store larger than memory, and read it for three epochs in several ways; print rates and memory.

    python -m bench.larger [SRC] [--rows 180000] [--size 256] [--pixels rgb] [--memory BYTES] [--scratch build] [--apt]
                           [--json]

SRC is a tree `train/<wnid>/*.JPEG`, whose images are linked until there are --rows; without it a sample tree is
generated in build/. 180,000 rows of 256x256 are 35 GB. Choose at least 1.4 times the memory of the machine, or
limit the memory of the Loaders with --memory, and choose a disk with space for the store.

`prep build` and `prep verify` run as usual, and Loaders give rows as they are stored. One process per arm drops the
store's pages and runs three epochs. In later epochs, rows that are still in memory are not read again. The last arm
reads all rows past the page cache. Before each arm, fio reads with the settings that a sweep found fastest (see
bench/cold.py); "of fio" is the rate divided by the fastest of them.

Memory of every process is sampled from outside. The exit code is 1 if a process grew by more than bench/soak.py allows.
The store is removed at the end, also after Ctrl-C.
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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.bounded import in_cgroup, memory_cgroup
from bench.build import find_tree
from bench.cold import (
    NO_FIO,
    SCRATCH,
    Reads,
    drop_pages,
    fastest,
    finalists,
    find_fio,
    fio_rate,
    rate_text,
    storage_name,
    sweep,
    timed_epoch,
)
from bench.conditions import conditions, heading
from bench.soak import build_and_verify, print_growth, table, watch
from decodeonce import Loader, open_store
from decodeonce.loader import readers
from decodeonce.loader.order import Shuffle
from decodeonce.store.layout import FORMS

EPOCHS = 3
ARMS = ("full pread", "full direct", "window pread", "window direct", "full past")  # order and reader


def measure_epochs(path: Path, arm: str, batch_size: int) -> list[list[float]]:
    """Drop the store's pages, run the epochs of an arm and return their rates."""
    store, (shuffle, reader) = open_store(path), arm.split()
    if reader == "past":
        readers.KEPT_MEMORY = 0.0
    drop_pages(store)
    orders: dict[str, Shuffle] = {"full": "full", "window": "window"}
    with Loader(
        path,
        batch_size=batch_size,
        shuffle=orders[shuffle],
        reader="pread" if reader == "pread" else "direct",
        pixels="stored",
    ) as loader:
        print(json.dumps(loader.stats()["reader"]), flush=True)  # makes the parent start sampling
        print(loader.stats()["reader"], file=sys.stderr)
        return [list(timed_epoch(loader, store, shuffle)) for _ in range(EPOCHS)]


def measure(source: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Build, verify and read the store; return the rates and the memory of each process."""
    here = conditions(options.rows, "three epochs of each arm, the first of them cold")
    processes, path = build_and_verify(source, scratch, options, "--pixels", options.pixels), scratch / "store"
    store = open_store(path)
    nbytes = len(store) * store.manifest.row_bytes
    seconds = {name: processes[f"`prep {name}`"][-1][0] for name in ("build", "verify")}
    fio: dict[Reads, list[float]] = {}
    if options.fio:
        print("running fio with all settings …", file=sys.stderr, flush=True)
        fio = {reads: [] for reads in finalists(sweep(store, options.seconds))}
    epochs = {}
    for arm in ARMS:
        for reads, rates in fio.items():
            rates.append(fio_rate(store, reads, options.seconds))
        print(f"running three epochs: {arm} …", file=sys.stderr, flush=True)
        arguments = [str(path), "--epochs", arm, "--batch-size", str(options.batch_size)]
        command = [sys.executable, "-m", "bench.larger", *arguments]
        with memory_cgroup(options.memory) if options.memory else nullcontext() as group:
            limited = in_cgroup(command, group) if group else command
            found, output = watch([*limited], options.every, announced=True)
        processes[arm], epochs[arm] = found[""], json.loads(output.splitlines()[-1])
    best = fastest(fio) if fio else None
    return {
        "conditions": here | {"images": len(store)},
        "storage": f"{storage_name(path)}, {options.fio or 'no fio'}",
        "bytes": nbytes,
        "row_bytes": store.manifest.row_bytes,
        "memory": options.memory,
        "build_images_per_s": len(store) / seconds["build"],
        "verify_bytes_per_s": nbytes / seconds["verify"],
        "disk": best and {"reads": str(best), "bytes_per_s": fio[best]},
        "epochs": epochs,
        "processes": processes,
    }


def rates_table(facts: dict[str, Any]) -> str:
    """Return the rates as Markdown."""
    memory = facts["memory"] or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size, disk = f"{facts['bytes'] / 1e9:.1f} GB, {facts['bytes'] / memory:.2f} times the memory", facts["disk"]
    lines = [
        f"{heading(facts['conditions'])}{facts['storage']}; {size}",
        f"`prep build`: {facts['build_images_per_s']:,.0f} images/s",
        f"`prep verify`: {facts['verify_bytes_per_s'] / 1e9:.2f} GB/s",
        f"fastest fio, GB/s: {rate_text(disk['bytes_per_s'])}, {disk['reads']}" if disk else NO_FIO,
        "",
        "| | GB/s | images/s | of fio | read per byte | processor s/GB |",
        "|---|---|---|---|---|---|",
    ]
    for name, epochs in facts["epochs"].items():
        for epoch, (rate, read, processor) in enumerate(epochs):
            share = f"{rate / statistics.median(disk['bytes_per_s']):.2f}" if disk else ""
            images = f"{rate / facts['row_bytes']:,.0f}"
            cells = f"{rate / 1e9:.2f} | {images} | {share} | {read:.2f} | {processor * 1e9:.2f}"
            lines.append(f"| {name}, epoch {epoch} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=180_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--pixels", choices=[*FORMS], default="rgb")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3, help="seconds per run of fio (default: 3)")
    parser.add_argument("--memory", type=int, help="bytes of memory for a Loader, page cache included; needs root")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between memory samples (default: 0.5)")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for the store (default: build)")
    parser.add_argument("--apt", action="store_true", help="install fio if it is missing; needs root")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--epochs", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epochs:
        print(json.dumps(measure_epochs(options.source, options.epochs, options.batch_size)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.fio = find_fio(install=options.apt)
    if not options.fio:
        print(NO_FIO, file=sys.stderr)
    source = find_tree(options.source)
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="larger-", dir=options.scratch))
    try:
        facts = measure(source, scratch, options)
    finally:
        shutil.rmtree(scratch)
    print(rates_table(facts), table(facts["processes"]), sep="\n\n", end="\n\n")
    return print_growth(facts, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
