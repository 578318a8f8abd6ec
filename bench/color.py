"""Compare the color steps of Augment with the transforms of other libraries in PerImage, on a CPU or another device.

    python -m bench.color [--batch-size 64] [--repeats 9] [--threads 1 2] [--device cpu] [--json]

The images are uint8 (224, 224, 3). Each step runs in turn with the same transform in PerImage: of torchvision with
tensors, of torchvision with images of Pillow, and of albumentations, which rounds more often. Results are milliseconds
of processor time and of wall time per image, medians of the repeats, and the ratios of these medians to those of the
step. On other devices than a CPU, only wall times count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.conditions import conditions, heading
from decodeonce.augment import (
    ColorJitter,
    Draws,
    GaussianBlur,
    PerImage,
    RandomErasing,
    RandomGrayscale,
    Solarize,
    Step,
)
from decodeonce.loader.buffers import Pool, recycle_from
from tools.libraries import load


def arms() -> dict[str, dict[str, Step]]:
    """The arms of each step: its own code, and PerImage."""
    v2, a = load("torchvision.transforms.v2"), load("albumentations")
    factors, blur = [(0.6, 1.4)] * 3, {"sigma_limit": (0.1, 2.0), "p": 1.0}
    triples: list[tuple[Any, Any, Any]] = [
        (
            ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            a.ColorJitter(*factors, (-0.1, 0.1), p=1),
        ),
        (ColorJitter(0.4, 0.4, 0.4), v2.ColorJitter(0.4, 0.4, 0.4), a.ColorJitter(*factors, (0, 0), p=1)),
        (RandomGrayscale(0.2), v2.RandomGrayscale(0.2), a.ToGray(p=0.2)),
        (Solarize(128, p=0.2), v2.RandomSolarize(128, p=0.2), a.Solarize((0.5, 0.5), p=0.2)),
        (GaussianBlur(23), v2.GaussianBlur(23), a.GaussianBlur((23, 23), **blur)),
        (GaussianBlur(5), v2.GaussianBlur(5), a.GaussianBlur((5, 5), **blur)),
        (RandomErasing(0.25), v2.RandomErasing(0.25), a.Erasing((0.02, 0.33), (0.3, 3.3), p=0.25)),
    ]
    found: dict[str, dict[str, Step]] = {}
    for own, torchvision, albumentations in triples:
        found[repr(own)] = {
            "own": own,
            "torchvision": PerImage(torchvision),
            "albumentations": PerImage(albumentations),
        }
        if not isinstance(own, RandomErasing):  # torchvision's accepts no images of Pillow
            found[repr(own)]["torchvision, Pillow"] = PerImage(torchvision, takes="pil")
    return found


def measure(images: Tensor, repeats: int, threads: int) -> dict[str, Any]:
    """Run all arms in turn and return the milliseconds per image."""
    torch.set_num_threads(threads)
    recycle_from(Pool(4))  # a Loader does the same
    draws = Draws(0, torch.arange(len(images), device=images.device))
    arms_of = arms()
    spent: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for repeat in range(repeats + 1):
        for name, steps in arms_of.items():
            for kind, step in steps.items():
                start, start_cpu = time.perf_counter(), time.process_time()
                step(images, draws)
                if images.device.type != "cpu":
                    torch.accelerator.synchronize()
                took = time.process_time() - start_cpu, time.perf_counter() - start
                if repeat:  # the first run is left out: it checks that transforms can be repeated
                    spent.setdefault(name, {}).setdefault(kind, []).append(took)
    return {
        name: {
            kind: [statistics.median(times) / len(images) * 1e3 for times in zip(*took, strict=True)]
            for kind, took in kinds.items()
        }
        for name, kinds in spent.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    coarse = np.random.default_rng(0).integers(0, 256, (options.batch_size, 28, 28, 3), np.uint8)
    images = torch.from_numpy(coarse.repeat(8, 1).repeat(8, 2)).to(options.device)
    here = conditions(options.batch_size, "in memory")
    facts = {threads: measure(images, options.repeats, threads) for threads in options.threads}
    if options.json:
        print(json.dumps({"conditions": here, "ms_per_image": facts}))
        return
    print(heading(here))
    print(
        f"per image, and ratio to own, processor and wall, {options.repeats} repeats, batches of {options.batch_size}"
    )
    for threads, steps in facts.items():
        for name, kinds in steps.items():
            print(f"{threads} threads, {name}")
            for kind, times in kinds.items():
                ratios = [time / own for time, own in zip(times, kinds["own"], strict=True)]
                print(
                    f"  {kind:20}"
                    + "".join(f"{time:9.3f} ms {ratio:5.1f}" for time, ratio in zip(times, ratios, strict=True))
                )


if __name__ == "__main__":
    main()
