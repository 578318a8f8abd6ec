"""What bench/device_check.py measures and no other benchmark does: `python -m bench.device_parts PART STORE [...]`.

Each figure is printed when it is known. `--device cpu` only shows that the script works.

- `environment`: the machine, its packages and its devices. It needs no STORE.
- `data`: create a STORE of random rows, and a tree of JPEG files next to it.
- `copies`: bytes/s of copies to the device, and of the Loader with each reader and number of threads.
- `augmentation`: milliseconds of the device and of the host, launches, and extra memory of chains and of single steps.
- `forms`: rows/s of the usual chain from stores of each form, from pinned memory and from the device's cache.
- `ahead`: device memory of batches while the host runs ahead of the device.
- `small`: training with batches of 16, where the host limits the rate.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile

from bench.conditions import conditions, heading
from bench.copies import drain
from bench.gpu_arms import Bench
from bench.synthetic import synthetic_store
from decodeonce import Batch, Loader, Store, open_store
from decodeonce.augment import (
    Augment,
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    Normalize,
    RandomErasing,
    RandomFlip,
    RandomGrayscale,
    RandomResizedCrop,
    Solarize,
)
from decodeonce.host import installed_version, usable_cores
from decodeonce.store.layout import FORMS
from examples.sample import write_sample_tree

TEN_MS, STEP = 20_000_000, 40_000_000  # cycles of a GPU that waits, about 10 and 20 ms
QUERY = "name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,clocks.sm"
SPACES = {"highest": "float32", "high": "TF32"}
FROM: dict[str, Literal["device"] | None] = {"pinned memory": None, "the device's cache": "device"}


def say(name: str, value: object) -> None:
    """Print a figure at once."""
    print(f"{name:58} {value}", flush=True)


def environment() -> None:
    """Print what the machine has."""
    print(heading(conditions(0, "nothing is measured")))
    say("triton, kornia, pytest", [installed_version(name) for name in ("triton", "kornia", "pytest")])
    say("locked memory, bytes", resource.getrlimit(resource.RLIMIT_MEMLOCK))
    say("memory nodes", len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))
    say("free disk, GB", round(shutil.disk_usage(".").free / 1e9))
    commands = [["nvidia-smi"], ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"], ["gcc", "--version"]]
    for command in [*commands, [sys.executable, "-m", "decodeonce.cli", "doctor"]]:
        print(f"\n$ {' '.join(command)}", flush=True)
        if shutil.which(command[0]):
            subprocess.run(command, check=False, timeout=60, stderr=subprocess.STDOUT)
        else:
            say(command[0], "is not installed")


def data(store: Path, rows: int, images: int) -> None:
    """Create the store and the tree, unless an earlier run has created them."""
    start = time.perf_counter()
    synthetic_store(store, rows)
    say(f"{rows} random rows, s", round(time.perf_counter() - start, 1))
    start, tree = time.perf_counter(), store.with_name("tree")
    if not tree.exists():
        write_sample_tree(tree, count=images, classes=10, workers=usable_cores())
    say(f"{images} JPEG files, s", round(time.perf_counter() - start, 1))


class Parts:
    """The measurements for one device and store."""

    def __init__(self, store: Store, device: torch.device, batch_size: int, repeats: int) -> None:
        self.store, self.device, self.batch_size, self.repeats = store, device, batch_size, repeats
        self.on_cuda = device.type == "cuda"
        self.batch_bytes = batch_size * store.manifest.row_bytes

    def loader(self, **settings: Any) -> Loader:
        """Create a Loader."""
        return Loader(self.store, batch_size=self.batch_size, device=self.device, **settings)

    def finish(self) -> None:
        """Wait until the device has finished."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the median time of `work`, until the device has finished it."""
        times = []
        for _ in range(self.repeats):
            self.finish()
            start = time.perf_counter()
            work()
            self.finish()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def copies(self) -> None:
        """Measure copies from pinned and from ordinary memory, and the Loader."""
        target = torch.empty(self.batch_bytes, dtype=torch.uint8, device=self.device)
        ring = [torch.zeros(self.batch_bytes, dtype=torch.uint8, pin_memory=self.on_cuda) for _ in range(5)]
        ordinary = torch.zeros(self.batch_bytes, dtype=torch.uint8)
        steps = len(self.store) // self.batch_size

        def copy(sources: list[torch.Tensor]) -> None:
            for step in range(steps):
                target.copy_(sources[step % len(sources)], non_blocking=True)

        rates = {}
        for name, sources in {"one pinned": ring[:1], "a ring of 5 pinned": ring, "one ordinary": [ordinary]}.items():
            copy(sources)
            rates[name] = steps * self.batch_bytes / self.seconds(partial(copy, sources))
            say(f"copies from {name}, GB/s", round(rates[name] / 1e9, 2))
        cores = usable_cores()
        for reader in ("mmap", "pread"):
            for threads in (count for count in (1, 2, 4, 8, 12, 16) if count <= cores):
                with self.loader(reader=reader, threads=threads) as loader:
                    drain(loader)
                    rate = len(loader) * self.batch_bytes / self.seconds(partial(drain, loader))
                    spent = loader.stats()["threads"]
                share = rate / rates["a ring of 5 pinned"]
                say(f"Loader, {reader}, {threads} threads, GB/s, of the ring", [round(rate / 1e9, 2), round(share, 3)])
                say("  its threads", spent)
        with self.loader() as loader:
            drain(loader)
            say("Loader by default", loader.stats()["reader"])

    def augmentation(self) -> None:
        """Measure the usual chain with both precisions of float32 products, and each step on 224x224 images."""
        for precision, products in SPACES.items():
            torch.set_float32_matmul_precision(precision)
            chain = RandomResizedCrop(224), RandomFlip(), Normalize("imagenet", dtype=torch.bfloat16)
            self.augmented(f"crop, flip, normalize to bf16, {products}", Augment(*chain), 256)
        torch.set_float32_matmul_precision("highest")
        jitter = ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8)
        gray, blur = RandomGrayscale(p=0.2), GaussianBlur(23, p=0.5)
        self.augmented("a view of SimCLR", Augment(*chain[:2], jitter, gray, blur, chain[2]), 256)
        steps = [*chain, jitter, gray, blur, Solarize(p=0.2)]
        for step in [*steps, RandomErasing(), MixUp(0.2, num_classes=1000), CutMix(1.0, num_classes=1000)]:
            self.augmented(type(step).__name__, Augment(step), 224)

    def augmented(self, name: str, augment: Augment, size: int) -> None:
        """Measure a transform of one batch."""
        shape = self.batch_size, size, size, 3
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device)
        labels, rows = torch.randint(0, 1000, shape[:1], device=self.device), torch.arange(shape[0], device=self.device)
        work = partial(augment, Batch(images, labels, rows, shape[0], 0))
        for _ in range(3):
            work()
        if not self.on_cuda:
            say(f"{name}: ms", round(self.seconds(work) * 1e3, 3))
            return
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        on_device, on_host = [], []
        for _ in range(4 * self.repeats):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.finish()
            torch.cuda._sleep(TEN_MS)  # all launches are queued meanwhile, so that gaps between them do not count
            first.record()
            start = time.perf_counter()
            work()
            on_host.append((time.perf_counter() - start) * 1e3)
            last.record()
            self.finish()
            on_device.append(first.elapsed_time(last))
        extra = (torch.cuda.max_memory_allocated() - before) / 1e6
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            work()
            self.finish()
        launches = sum(event.count for event in profiler.key_averages() if "LaunchKernel" in event.key)
        times = round(statistics.median(on_device), 3), round(statistics.median(on_host), 3)
        say(f"{name}: ms, host ms, launches, extra MB", [*times, launches, round(extra)])

    def forms(self) -> None:
        """Measure the usual chain from stores of each form, which are next to the store and have as many rows."""
        chain = Augment(RandomResizedCrop(224), RandomFlip(), Normalize("imagenet", dtype=torch.bfloat16))
        for pixels in FORMS:
            root = self.store.paths.root
            if pixels != self.store.manifest.pixels:
                root = synthetic_store(root.with_name(f"{pixels}.store"), len(self.store), pixels=pixels)
            for name, cache in FROM.items():
                with Loader(
                    root, batch_size=self.batch_size, device=self.device, transform=chain, cache=cache
                ) as loader:
                    drain(loader)
                    rate = len(loader) * self.batch_size / self.seconds(partial(drain, loader))
                say(f"{pixels} from {name}: rows/s", round(rate))

    def ahead(self) -> None:
        """Measure the memory of batches in a loop whose steps are single launches, such as replays of a graph."""
        if not self.on_cuda:
            say("ahead", f"is not measured, because it needs CUDA, and the device is {self.device}")
            return
        chain = Augment(RandomResizedCrop(224), RandomFlip(), Normalize("imagenet", dtype=torch.bfloat16))
        for name, transform in {"no transform": None, "with Augment": chain}.items():
            with self.loader(transform=transform) as loader:
                drain(loader)
                self.finish()
                torch.cuda.empty_cache()
                before, size = torch.cuda.memory_reserved(), 1
                for batch in loader:
                    size = batch.images.nbytes
                    torch.cuda._sleep(STEP)
                    del batch
                reserved = (torch.cuda.memory_reserved() - before) / size
                say(f"ahead, {name}: reserved after {len(loader)} steps, in batches", round(reserved, 1))
                self.finish()
            torch.cuda.empty_cache()

    def small(self) -> None:
        """Train with small batches, so that the host shares Python's lock with the Loader's threads."""
        bench = Bench(self.store, self.device, min(16, self.batch_size), 60 if self.on_cuda else 1)
        augmented = next(iter(bench.loaders["with Augment"]))
        arms: dict[str, Callable[[], dict[str, float]]] = {
            "one batch": partial(bench.same_batch, bench.constant),
            "from the store": partial(bench.train, "from the store"),
            "one augmented batch": partial(bench.same_batch, augmented),
            "with Augment": partial(bench.train, "with Augment"),
        }
        for arm in arms.values():
            arm()  # not counted: it selects and compiles kernels
        for name, arm in arms.items():
            rates = [arm()["images_per_s"] for _ in range(self.repeats)]
            say(f"batches of {bench.batch_size}, {name}: images/s", round(statistics.median(rates)))
        say("the Loader with Augment", bench.loaders["with Augment"].stats())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {name: getattr(Parts, name) for name in ("copies", "augmentation", "forms", "ahead", "small")}
    parser.add_argument("part", choices=["environment", "data", *parts])
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=80 * 256, help="rows of `data`")
    parser.add_argument("--images", type=int, default=1500, help="JPEG files of `data`")
    options = parser.parse_args()
    if options.part == "environment":
        environment()
    elif options.store is None:
        parser.error(f"STORE is missing, which {options.part} needs")
    elif options.part == "data":
        data(options.store, options.rows, options.images)
    else:
        parts[options.part](Parts(open_store(options.store), options.device, options.batch_size, options.repeats))


if __name__ == "__main__":
    main()
