"""Train on one accelerator from this project and from other loaders: images/s, waiting of the device, processor cores.

    python -m bench.gpu_peers [TREE] [--batch-size 256] [--steps 60] [--repeats 5] [--json]

Each loader feeds the same training step, ResNet-50 in bf16 and channels_last, with batches of 256x256 rows, uint8. Each
one is used as its documentation says (bench/gpu_feeds.py, bench/peers), with as many workers or threads as this process
may use cores; the Loader has its default. An epoch has --steps batches. Epochs are timed with their start, in turn;
results are medians, and ratios of medians with their range over the repeats. When an epoch ends, its figures are
printed as a line of JSON on standard error, so that a run that is stopped keeps them.

TREE is a tree `train/<wnid>/*.JPEG`, from which all files are built. Without it, rows are random and JPEG files are
those of a generated sample. All files are in the page cache.

"Device waits" is the share of the time in which the device had no batch. "Cores" are processor seconds of the process
and its workers per second, which include the waiting of the device's driver: compare them with those of one batch.

Only NumPy, torch and Pillow are needed. A loader that is not installed in this environment is reported and left out.
`--device cpu` only shows that the script works.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from bench.build import find_tree
from bench.conditions import conditions, heading, medians, ratio, ratio_text, report
from bench.gpu_feeds import FEEDS, OURS, Task
from bench.peers.decodeonce import build
from bench.peers.harness.images import plain_tree
from bench.peers.harness.peer import Source
from bench.synthetic import synthetic_store
from bench.training import ROOT, Batches, Run, Training, parse_options
from decodeonce import open_store
from decodeonce.host import usable_cores

SCRATCH = ROOT / "build" / "gpu-peers"
SIZE = 256
ONE_BATCH = "one batch on the device"


def prepare(options: argparse.Namespace) -> Task:
    """Create the files that feeds read, unless an earlier run has created them."""
    images = plain_tree(find_tree(options.tree), options.batch_size * options.steps, options.scratch)
    source = Source(images / "tree", SIZE, options.batch_size, usable_cores())
    folder = images / ("built" if options.tree else "random")
    folder.mkdir(exist_ok=True)
    store = folder / "store"
    if not options.tree:
        synthetic_store(store, len(source.files))
    elif not (store / "store.json").exists():
        shutil.rmtree(store, ignore_errors=True)
        build(source, folder)
    for name, target in (("images.npy", "images-00000.npy"), ("labels.npy", "labels.npy")):
        if not (folder / name).exists():
            (folder / name).symlink_to(Path("store", target))
    return Task(source, store, folder, options.device)


def measure(training: Training, task: Task, repeats: int) -> dict[str, Any]:
    """Run an epoch of every feed, and then those that work in turn; return the facts to print."""
    feeds: dict[str, Callable[[], Batches]] = {}
    missing: dict[str, str] = {}
    for name, open_feed in FEEDS.items():
        try:
            feeds[name] = open_feed(task)
            found = training.run(feeds[name]())  # not counted: it starts workers, selects kernels, warms the page cache
            report(name, 0, found)
            if found["images"] != len(task.source.files):
                raise RuntimeError(f"an epoch had {found['images']} images, expected {len(task.source.files)}")
        except (ImportError, OSError, RuntimeError) as error:
            if name == OURS:
                raise
            feeds.pop(name, None)
            missing[name] = " ".join(str(error).split())
            print(f"{name} is left out: {missing[name]}", file=sys.stderr, flush=True)
    batch = [part.clone() for part in next(iter(feeds[OURS]()))]
    steps = len(task.source.files) // task.source.batch_size

    def one_batch() -> Iterator[list[torch.Tensor]]:
        return (batch for _ in range(steps))

    feeds[ONE_BATCH] = one_batch
    runs: dict[str, list[Run]] = {name: [] for name in feeds}
    for repeat in range(1, repeats + 1):
        for name, epoch in feeds.items():
            runs[name].append(training.run(epoch()))
            report(name, repeat, runs[name][-1])
    rates = {name: [run["images_per_s"] for run in found] for name, found in runs.items()}
    ratios = {name: ratio(rate, rates[OURS]) for name, rate in rates.items()}
    return {"device": training.name, "runs": medians(runs), "of_decodeonce": ratios, "missing": missing}


def table(facts: dict[str, Any]) -> str:
    """Return a Markdown table, the fastest first."""
    lines = ["| training from | images/s | of decodeonce | device waits | cores |", "|---|---|---|---|---|"]
    for name, run in sorted(facts["runs"].items(), key=lambda item: -item[1]["images_per_s"]):
        share = ratio_text(facts["of_decodeonce"][name])
        lines.append(
            f"| {name} | {run['images_per_s']:,.0f} | {share} | {run['device_waits']:.4f} | {run['cores']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for files (default: build/gpu-peers)")
    options = parse_options(parser)
    task = prepare(options)
    here = conditions(len(open_store(task.store)), "files in the page cache (warm)")
    training = Training(options.device)
    if not options.json:
        print(heading(here))
        workers = f"{task.source.workers} workers or threads"
        print(f"{training.name}, batches of {options.batch_size}, {workers}\n", flush=True)
    facts = {"conditions": here, **measure(training, task, options.repeats)}
    print(json.dumps(facts) if options.json else table(facts))


if __name__ == "__main__":
    main()
