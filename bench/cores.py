"""Measure how builds and the Loader scale with cores: more worker processes, threads and Loaders at once.

    python -m bench.cores [TREE] [--images 9000] [--rows 10240] [--batch-size 256] [--repeats 3] [--json]

- Building: the steady rate of `prep build` with 1, 2, 4, 8 and 16 workers, compared with bare simplejpeg in as many
  processes, as in bench/build.py. TREE is a tree `train/<wnid>/*.JPEG`, whose images are linked until there are
  --images; without it a sample tree is generated in build/.
- Loading: epochs of the Loader with 1 to 8 threads, and in 1 to 4 processes at once on the same store, compared with
  np.copyto in as many threads and processes, as in bench/copies.py. The store has --rows random rows.

No more workers and threads are used than this process may use cores. The arms of a repeat run in turn, warm. When a
case ends, its figures are printed as a line of JSON on standard error, so that a run that is stopped keeps them. Rates
are medians; ratios are ratios of the medians with their range over the repeats.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.build import BARE, SCRATCH, find_tree, link_images, parallel_rate, plain_jpegs, steady_build
from bench.conditions import conditions, heading, ratio, ratio_text, report
from bench.copies import Copies, drain
from bench.synthetic import ROW_BYTES, synthetic_store
from decodeonce import Loader, open_store
from decodeonce.host import usable_cores

WORKERS, THREADS, PROCESSES = (1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4)
EPOCHS = 5  # per measurement: one of 2 GB takes only 30 ms with eight threads
Rates = dict[str, dict[str, list[float]]]  # by case and arm


def builds(source: Path, folder: Path, repeats: int) -> Rates:
    """Build and decode with each number of workers, into a store in `folder`; return images/s."""
    paths = plain_jpegs(source)  # reads all files, so that they are in the page cache
    rates: Rates = {}
    for repeat in range(1, repeats + 1):
        for workers in (count for count in WORKERS if count <= usable_cores()):
            bare = parallel_rate(BARE, paths, workers, [], dict(os.environ))
            built = steady_build(source, folder / "store", workers)["rate"]
            shutil.rmtree(folder / "store")
            report(f"{workers} workers", repeat, {"bare_per_s": bare, "build_per_s": built})
            note(rates, f"{workers}", bare, built)
    return rates


def note(rates: Rates, case: str, base: float, ours: float) -> None:
    """Add one measurement of a case."""
    found = rates.setdefault(case, {"base": [], "ours": []})
    found["base"].append(base)
    found["ours"].append(ours)


def serve(pipe: Connection, path: Path, batch_size: int) -> None:
    """Run epochs until None is received: receive an arm and its threads, send the times of start and end."""
    store = open_store(path)
    copies = Copies(store, batch_size, len(store) // batch_size)
    loaders: dict[int, Loader] = {}
    while request := pipe.recv():
        arm, threads = request
        if arm == "ours" and threads not in loaders:
            loaders[threads] = Loader(store, batch_size=batch_size, threads=threads)
        start = time.perf_counter()
        for _ in range(EPOCHS):
            if arm == "ours":
                drain(loaders[threads])
            else:
                copies.epoch(threads)
        pipe.send((start, time.perf_counter()))


def rate(pipes: list[Connection], arm: str, threads: int, nbytes: int) -> float:
    """Run epochs in all these processes at once; return their total bytes/s."""
    for pipe in pipes:
        pipe.send((arm, threads))
    starts, ends = zip(*(pipe.recv() for pipe in pipes), strict=True)  # of one clock, CLOCK_MONOTONIC
    seconds: float = max(ends) - min(starts)
    return len(pipes) * EPOCHS * nbytes / seconds


def loads(path: Path, batch_size: int, repeats: int) -> Rates:
    """Load and copy with each number of threads and processes; return bytes/s."""
    cores = usable_cores()
    most = max(count for count in PROCESSES if count <= cores)
    cases = [(1, threads) for threads in THREADS if threads <= cores]
    cases += [(count, min(4, cores // most)) for count in PROCESSES if 1 < count <= cores]
    nbytes = len(open_store(path)) // batch_size * batch_size * ROW_BYTES
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(most):
        pipe, other = context.Pipe()
        children.append(context.Process(target=serve, args=(other, path, batch_size), daemon=True))
        children[-1].start()
        other.close()  # so that receiving fails if the child ends
        pipes.append(pipe)
    rates: Rates = {}
    for repeat in range(repeats + 1):
        for processes, threads in cases:
            base, ours = (rate(pipes[:processes], arm, threads, nbytes) for arm in ("base", "ours"))
            report(f"{processes} x {threads} threads", repeat, {"copies_per_s": base, "loader_per_s": ours})
            if repeat:  # the first run is left out: it touches new slots and mappings
                note(rates, f"{processes} | {threads}", base, ours)
    for pipe, child in zip(pipes, children, strict=True):
        pipe.send(None)
        child.join()
    return rates


def table(rates: Rates, head: str, unit: float, digits: int) -> str:
    """Return a Markdown table with a row per case."""
    lines = [f"| {head} | ratio |", "|" + "---|" * (head.count("|") + 2)]
    for case, found in rates.items():
        base, ours = (f"{statistics.median(found[arm]) / unit:,.{digits}f}" for arm in ("base", "ours"))
        lines.append(f"| {case} | {base} | {ours} | {ratio_text(ratio(found['ours'], found['base']))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=9000)
    parser.add_argument("--rows", type=int, default=10240)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for stores (default: build)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    facts: dict[str, Any] = {"conditions": conditions(options.rows, "rows and files in the page cache (warm)")}
    if not options.json:
        print(heading(facts["conditions"]), flush=True)
    store = synthetic_store(options.scratch / f"random-{options.rows}.store", options.rows)
    facts["loads"] = loads(store, options.batch_size, options.repeats)
    if find_spec("simplejpeg"):
        tree = find_tree(options.tree)
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            images = link_images(tree, options.images, Path(folder, "tree"))
            facts["builds"] = builds(images, Path(folder), options.repeats)
    if options.json:
        print(json.dumps(facts))
        return
    print(table(facts["loads"], "processes | threads each | np.copyto, GB/s | Loader, GB/s", 1e9, 1))
    print()
    if "builds" in facts:
        head = f"workers, {options.images:,} images | bare simplejpeg, images/s | prep build, images/s"
        print(table(facts["builds"], head, 1, 0))
    else:
        print("building is left out: simplejpeg is not installed; run: pip install simplejpeg")


if __name__ == "__main__":
    main()
