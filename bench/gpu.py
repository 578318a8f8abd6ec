"""Measure transfers to an accelerator, and training and augmentation from a store.

    python -m bench.gpu [STORE] [--batch-size 256] [--steps 60] [--repeats 5] [--trace FILE.json] [--json]

It takes up to five minutes on one GPU. The arms of a repeat run in turn. When an arm ends, its figures are printed as a
line of JSON on standard error, so that a run that is stopped keeps them. Results are medians; ratios are ratios of the
medians with their range over the repeats. Without STORE, 4 GB of random rows are created in build/gpu.store.
`--device cpu` only shows that the script works.

- Transfers: bytes/s of whole epochs of the Loader, starts included, compared with copies of as many bytes from
  pinned memory (goal: 0.95). They come from a ring of as many buffers as the Loader has, because a single buffer would
  stay in the processor's cache.
- First batch: from opening the store to a batch on the device, in a process that has loaded before.
- Training: images/s of ResNet-50 in bf16 and channels_last, compared with the same loop on one batch that stays on the
  device (goal: 0.99): from the store, with Augment, and with cache="device" when all rows are cached. "Device waits" is
  the share of the time in which the device had no batch; "steps waited" is the share of steps for which the loop had to
  wait in next(). The processor time is that of the whole process, which includes the waiting of the device's driver.
- Augmentation: images/s of RandomResizedCrop(224), RandomFlip and Normalize to bf16.
- `--trace`: what each stream did during three steps from the store, for https://ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.conditions import conditions, heading, medians, ratio, ratio_text, report
from bench.copies import drain
from bench.gpu_arms import Bench
from bench.synthetic import synthetic_store
from bench.training import ROOT, TRACED_STEPS, Run, parse_options
from decodeonce import open_store

ROWS = 80 * 256
BASES = {"from the store": "one batch", "with Augment": "one augmented batch", "from the cache": "one batch"}


def measure(bench: Bench, repeats: int) -> dict[str, Any]:
    """Run all arms and return the facts to print."""
    cache = bench.loaders["from the cache"]
    while cache.stats()["memory"]["cached_rows"] < cache.count:
        drain(cache)
    augmented = next(iter(bench.loaders["with Augment"]))
    arms: dict[str, Callable[[], Run]] = {
        "pinned copies": bench.copies,
        "Loader": bench.transfers,
        "first batch": bench.first_batch,
        "augmenting": bench.augmenting,
        "one batch": lambda: bench.same_batch(bench.constant),
        "from the store": lambda: bench.train("from the store"),
        "from the cache": lambda: bench.train("from the cache"),
        "one augmented batch": lambda: bench.same_batch(augmented),
        "with Augment": lambda: bench.train("with Augment"),
    }
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):
        for name, arm in arms.items():
            run = arm()
            report(name, repeat, run)
            if repeat:  # the first run is left out: it allocates slots, and selects and compiles kernels
                runs[name].append(run)

    def over(name: str, base: str, key: str) -> list[float]:
        return ratio([run[key] for run in runs[name]], [run[key] for run in runs[base]])

    return {
        "device": bench.training.name,
        "batch_size": bench.batch_size,
        "runs": medians(runs),
        "transfer_over_copies": over("Loader", "pinned copies", "bytes_per_s"),
        "of_one_batch": {name: over(name, base, "images_per_s") for name, base in BASES.items()},
        "bottleneck": bench.loaders["from the store"].bottleneck(),
    }


def table(facts: dict[str, Any]) -> str:
    """Return the facts as text, with a Markdown table of training."""
    runs = facts["runs"]
    gigabytes = {name: f"{runs[name]['bytes_per_s'] / 1e9:.2f} GB/s" for name in ("pinned copies", "Loader")}
    lines = [
        f"{facts['device']}, batches of {facts['batch_size']}",
        f"pinned copies {gigabytes['pinned copies']}, Loader {gigabytes['Loader']}, "
        f"ratio {ratio_text(facts['transfer_over_copies'])}",
        f"first batch {runs['first batch']['seconds'] * 1e3:,.0f} ms",
        f"augmenting {runs['augmenting']['images_per_s']:,.0f} images/s",
        "",
        "| training | images/s | of the same loop on one batch | device waits | steps waited | processor ms per step |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("one batch", "from the store", "from the cache", "one augmented batch", "with Augment"):
        run, shares = runs[name], facts["of_one_batch"]
        waited = f"{run['steps_waited']:.3f}" if name in shares else ""
        cells = [name, f"{run['images_per_s']:,.0f}", ratio_text(shares[name]) if name in shares else "1"]
        cells += [f"{run['device_waits']:.4f}", waited, f"{run['processor_s_per_step'] * 1e3:,.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"limited by {facts['bottleneck']}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--trace", type=Path, metavar="FILE.json", help="trace the streams during training")
    options = parse_options(parser)
    store = open_store(options.store or synthetic_store(ROOT / "build" / "gpu.store", ROWS))
    here = conditions(len(store), "rows in the page cache (warm)")
    if not options.json:
        print(heading(here), flush=True)
    bench = Bench(store, options.device, options.batch_size, options.steps)
    if options.trace:  # before the measurements, so that none is lost if the profiler does not work
        bench.training.trace(bench.batches("from the store", TRACED_STEPS), options.trace)
    facts = {"conditions": here, **measure(bench, options.repeats)}
    print(json.dumps(facts) if options.json else table(facts))


if __name__ == "__main__":
    main()
