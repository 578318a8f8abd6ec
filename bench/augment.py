"""Measure augmentation on a CPU: a random crop resized to 224x224, a random flip, and normalization to float32.

    python -m bench.augment [--batch-size 256] [--repeats 5] [--threads 1 2] [--json]

The images are uint8 (256, 256, 3) in memory. Three arms make the same kind of batch, in turn, with each number of
threads: Augment; Pillow and NumPy, one image at a time; torchvision.transforms.v2, one image at a time (left out if it
is not installed). Results are milliseconds of processor time and of wall time per image, medians of the repeats.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

from bench.conditions import conditions, heading
from decodeonce import Batch
from decodeonce.augment import Augment, Draws, Normalize, RandomFlip, RandomResizedCrop
from decodeonce.loader.augment.normalize import IMAGENET
from decodeonce.loader.buffers import Pool, recycle_from
from tools.libraries import load

SIZE = 224
Arm = Callable[[int], None]


def augment_arm(images: Tensor) -> Arm:
    """Augment a whole batch at once."""
    augment = Augment(RandomResizedCrop(SIZE), RandomFlip(), Normalize("imagenet"))
    recycle_from(Pool(4))  # a Loader does the same
    rows = torch.arange(len(images))
    batch = Batch(images, rows, rows, len(images), 0)

    def run(threads: int) -> None:
        augment(batch)

    return run


def per_image_arm(images: Tensor, make: Callable[[int], Tensor]) -> Arm:
    """Fill one batch with `make(row)` for each row, in threads."""

    def run(threads: int) -> None:
        batch = torch.empty((len(images), 3, SIZE, SIZE)).to(memory_format=torch.channels_last)
        target = batch.numpy()

        def work(number: int) -> None:
            for row in range(number, len(images), threads):
                target[row] = make(row).numpy()

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))

    return run


def pillow_arm(images: Tensor) -> Arm:
    """Crop, resize and flip with Pillow and normalize with NumPy. The crop windows are those of RandomResizedCrop."""
    windows = RandomResizedCrop(SIZE).windows(Draws(0, torch.arange(len(images))), *images.shape[1:3]).tolist()
    mean, std = (np.tile(np.array(values, np.float32), SIZE) for values in IMAGENET)
    scale, shift = 1 / std, -mean / std
    pil_images = [Image.fromarray(image) for image in images.numpy()]

    def make(row: int) -> Tensor:
        top, left, height, width = windows[row]
        box = (left, top, left + width, top + height)
        image = pil_images[row].resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        levels = np.asarray(image).reshape(SIZE, -1) * scale + shift
        return torch.from_numpy(levels).view(SIZE, SIZE, 3).permute(2, 0, 1)

    return per_image_arm(images, make)


def torchvision_arm(images: Tensor) -> Arm:
    """Use torchvision's transforms for tensors, in the order and with the dtypes that its documentation recommends."""
    v2 = load("torchvision.transforms.v2")
    steps: list[Any] = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    transform = v2.Compose(steps)
    planes = images.permute(0, 3, 1, 2)
    return per_image_arm(images, lambda row: transform(planes[row]))


def measure(batch_size: int, repeats: int, counts: list[int]) -> dict[str, Any]:
    """Run all arms and return the facts to print."""
    here = conditions(batch_size, "in memory")
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (batch_size, 256, 256, 3), np.uint8))
    arms = {"decodeonce": augment_arm(images), f"Pillow {PIL.__version__}": pillow_arm(images)}
    if importlib.util.find_spec("torchvision"):
        arms[f"torchvision {load('torchvision').__version__}"] = torchvision_arm(images)
    spent: dict[str, list[tuple[float, float]]] = {}
    for repeat in range(repeats + 1):
        for threads in counts:
            torch.set_num_threads(threads)
            for name, arm in arms.items():
                start, start_cpu = time.perf_counter(), time.process_time()
                arm(threads)
                took = time.process_time() - start_cpu, time.perf_counter() - start
                if repeat:  # the first run is left out: it touches new memory and starts threads
                    spent.setdefault(f"{name}, {threads} threads", []).append(took)
    per_image = {
        name: [statistics.median(times) / batch_size * 1e3 for times in zip(*took, strict=True)]
        for name, took in spent.items()
    }
    return {"conditions": here, "ms_per_image": per_image, "batch_size": batch_size, "repeats": repeats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    facts = measure(options.batch_size, options.repeats, options.threads)
    if options.json:
        print(json.dumps(facts))
        return
    print(heading(facts["conditions"]))
    print(f"ms per image, {options.repeats} repeats, batches of {options.batch_size}")
    for name, (processor, wall) in facts["ms_per_image"].items():
        print(f"{name:40s} {processor:7.3f} processor {wall:7.3f} wall")
    if not importlib.util.find_spec("torchvision"):
        print("torchvision is left out, because it is not installed")


if __name__ == "__main__":
    main()
