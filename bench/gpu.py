"""Measure transfers to an accelerator, training from a store, and augmentation.

    python bench/gpu.py [STORE] [--batch-size 256] [--steps 60] [--repeats 5] [--json]

It takes up to five minutes on one GPU. The arms of a repeat run in turn. Results are medians; ratios are ratios of the
medians with their range over the repeats. Without STORE, 4 GB of random rows are created in build/gpu.store.
`--device cpu` only shows that the script works.

- Transfers: bytes/s of the Loader's epochs, compared with copies of as many bytes from one pinned buffer (goal: 0.95).
- Training: images/s of ResNet-50 in bf16 from the store, compared with the same loop on one batch that stays on the
  device (goal: 0.99), and the share of steps that waited. The same again with cache="device", when all rows are cached.
- Augmentation: images/s of RandomResizedCrop(224), RandomFlip and Normalize to bf16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from conditions import conditions, heading, ratio, ratio_text
from synthetic import synthetic_store
from torch import Tensor, nn

from decodeonce import Batch, Loader, Store, open_store
from decodeonce.loader.augment import Augment, Normalize, RandomFlip, RandomResizedCrop

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from train_resnet50 import resnet50  # noqa: E402

ROWS = 80 * 256


class Bench:
    """The measurements for one device, store and model."""

    def __init__(self, store: Store, device: torch.device, batch_size: int, steps: int) -> None:
        self.device, self.batch_size, self.steps = device, batch_size, steps
        self.shape = (batch_size, *store.manifest.shape)
        self.loaders = {
            name: Loader(store, batch_size=batch_size, device=device, partition="range", cache=cache)
            for name, cache in (("store", None), ("cache", "device"))
        }
        torch.backends.cudnn.benchmark = True
        self.model = resnet50(1000).to(device).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.constant = next(iter(self.loaders["store"]))
        self.pinned = torch.empty(self.shape, dtype=torch.uint8, pin_memory=device.type != "cpu")
        self.target = torch.empty(self.shape, dtype=torch.uint8, device=device)
        self.augment = Augment(RandomResizedCrop(224), RandomFlip(), Normalize(store, dtype=torch.bfloat16))

    def seconds(self, work: Callable[[], None]) -> float:
        """Return how long `work` takes, until the device has finished it."""
        self.finish()
        start = time.perf_counter()
        work()
        self.finish()
        return time.perf_counter() - start

    def finish(self) -> None:
        """Wait until the device has finished."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def copies(self) -> float:
        """Return bytes/s of plain copies from pinned memory."""

        def work() -> None:
            for _ in range(self.steps):
                self.target.copy_(self.pinned, non_blocking=True)

        return self.steps * self.pinned.nbytes / self.seconds(work)

    def transfers(self) -> float:
        """Return bytes/s of the Loader's batches, including the start of each epoch."""

        def work() -> None:
            for _ in self.batches("store"):
                pass

        return self.steps * self.pinned.nbytes / self.seconds(work)

    def training(self, feed: Callable[[], Iterator[Batch]]) -> float:
        """Return images/s of training on these batches."""

        def work() -> None:
            for images, labels in feed():
                self.train(images, labels)

        return self.steps * self.batch_size / self.seconds(work)

    def augmenting(self) -> float:
        """Return images/s of augmentation alone."""

        def work() -> None:
            for _ in range(self.steps):
                self.augment(self.constant)

        return self.steps * self.batch_size / self.seconds(work)

    def train(self, images: Tensor, labels: Tensor) -> None:
        """Run one training step."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu"):
            loss = nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def batches(self, name: str) -> Iterator[Batch]:
        """Yield `self.steps` batches of a Loader, from several epochs if necessary."""
        left = self.steps
        while left:
            for _, batch in zip(range(left), self.loaders[name], strict=False):
                yield batch
                left -= 1

    def same_batch(self) -> Iterator[Batch]:
        """Yield one batch `self.steps` times."""
        return (self.constant for _ in range(self.steps))


def measure(bench: Bench, repeats: int) -> dict[str, Any]:
    """Run all arms and return the facts to print."""
    while bench.loaders["cache"].stats()["cached_rows"] < len(bench.loaders["cache"]) * bench.batch_size:
        for _ in bench.loaders["cache"]:
            pass
    arms: dict[str, Callable[[], float]] = {
        "pinned copies, bytes/s": bench.copies,
        "Loader to the device, bytes/s": bench.transfers,
        "training on one batch, images/s": lambda: bench.training(bench.same_batch),
        "training from the store, images/s": lambda: bench.training(lambda: bench.batches("store")),
        "training from the cache, images/s": lambda: bench.training(lambda: bench.batches("cache")),
        "augmenting, images/s": bench.augmenting,
    }
    rates: dict[str, list[float]] = {name: [] for name in arms}
    waits: list[float] = []
    for repeat in range(repeats + 1):
        for name, arm in arms.items():
            before = bench.loaders["store"].stats()
            rate = arm()
            after = bench.loaders["store"].stats()
            if not repeat:  # the first run is left out: it allocates slots, and selects and compiles kernels
                continue
            rates[name].append(rate)
            if "from the store" in name:
                waited = [s["waited_batch_share"] * s["batches"] for s in (before, after)]
                waits.append((waited[1] - waited[0]) / (after["batches"] - before["batches"]))
    copies, transfers, constant, store, cache, _ = rates.values()
    return {
        "device": torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else str(bench.device),
        "batch_size": bench.batch_size,
        "rates": {name: statistics.median(values) for name, values in rates.items()},
        "transfer_over_copies": ratio(transfers, copies),
        "store_over_one_batch": ratio(store, constant),
        "cache_over_one_batch": ratio(cache, constant),
        "share_of_steps_that_waited": statistics.median(waits),
        "bottleneck": bench.loaders["store"].bottleneck(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    parser.add_argument("--device", type=torch.device, default=found)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    if options.device is None:
        parser.exit(0, "nothing is measured, because torch finds no accelerator here\n")
    store = open_store(options.store or synthetic_store(ROOT / "build" / "gpu.store", ROWS))
    here = conditions(len(store), "rows in the page cache (warm)")
    bench = Bench(store, options.device, options.batch_size, options.steps)
    facts = {"conditions": here, **measure(bench, options.repeats)}
    if options.json:
        print(json.dumps(facts))
        return
    print(heading(facts["conditions"]))
    print(f"{facts['device']}, batches of {facts['batch_size']}")
    for name, rate in facts["rates"].items():
        print(f"{name:34s} {rate / 1e9:10.2f} G" if "bytes" in name else f"{name:34s} {rate:10,.0f}")
    for name in ("transfer_over_copies", "store_over_one_batch", "cache_over_one_batch"):
        print(f"{name.replace('_', ' '):34s} {ratio_text(facts[name])}")
    print(f"{'share of steps that waited':34s} {facts['share_of_steps_that_waited']:10.3f}")
    print(f"limited by {facts['bottleneck']}")


if __name__ == "__main__":
    main()
