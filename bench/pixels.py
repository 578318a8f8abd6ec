"""Compare stores of yuv420 and bc4 with one of RGB: bytes, processor time, reading, images, and a small training.

    python -m bench.pixels [SRC] [--images 2000] [--rows 20000] [--repeats 5] [--seeds 0] [--scratch build] [--json]

SRC is a tree `train/<wnid>/*.JPEG`, whose images are linked until there are --images; without it a sample tree is
generated in build/. All arms run in turn:

- `prep build` of SRC: processor time of the command and its workers, for all images.
- Augment (a random crop resized to 224x224, a flip, Normalize) of a batch in memory, one thread, per image.
- A Loader without a transform, one thread, from memory: what unpacking costs a CPU, per image.
- Reading --rows random rows from a cold disk past the page cache, as for a device that unpacks them itself.
- PSNR and SSIM of each image against its RGB row, and those of a JPEG of quality 90.
- With --seeds N: a small network learns to tell from which image a crop comes, in N runs for each kind of image. The
  crops of the training and those of the test are from two halves of an image. The result is the accuracy on
  the test crops, as the difference to RGB with the standard error of its mean.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from bench.build import find_tree, link_images
from bench.cold import SCRATCH, cold_epoch
from bench.conditions import conditions, heading
from bench.synthetic import synthetic_store
from decodeonce import Loader, open_store
from decodeonce.augment import Augment, Normalize, RandomFlip, RandomResizedCrop
from decodeonce.store.layout import PixelsName

KINDS: tuple[PixelsName, ...] = ("rgb", "yuv420", "bc4")
Images = NDArray[np.uint8]
CROP, STEPS, CROPS = 32, 400, 256
MOST_COMPARED = 2000


def build_seconds(source: Path, out: Path, pixels: str) -> float:
    """Build a store; return the processor time."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "decodeonce.cli", "build", "imagenet", source, out, "--pixels", pixels, "--quiet"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*map(str, command)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def epoch_seconds(path: Path, **settings: Any) -> float:
    """The processor time of an epoch of a Loader, from memory."""
    with Loader(path, batch_size=100, threads=1, reader="mmap", **settings) as loader:
        for _ in loader:  # touches new memory
            pass
        start = time.process_time()
        for _ in loader:
            pass
        return time.process_time() - start


def measure(source: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all arms and return the facts to print."""
    stores = {kind: scratch / f"{kind}.store" for kind in KINDS}
    large = {kind: synthetic_store(scratch / f"{kind}.large", options.rows, pixels=kind) for kind in KINDS}
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    torch.set_num_threads(1)
    augment = Augment(RandomResizedCrop(224), RandomFlip(), Normalize("imagenet"))
    for _ in range(options.repeats):
        for kind in KINDS:
            spent["build, processor s"][kind].append(build_seconds(source, stores[kind], kind))
        count = len(open_store(stores["rgb"]))
        for kind in KINDS:
            seconds = epoch_seconds(stores[kind], transform=augment)
            spent["augmentation, processor ms an image"][kind].append(seconds / count * 1e3)
            seconds = epoch_seconds(stores[kind])
            spent["no transform, processor ms an image"][kind].append(seconds / count * 1e3)
        for kind in KINDS:
            store = open_store(large[kind])
            rate = cold_epoch(store, 256, "full", "direct", pixels="stored").rate
            spent["from a cold disk, images/s"][kind].append(rate / store.manifest.row_bytes)
    few = slice(MOST_COMPARED)
    images = {kind: open_store(stores[kind]).images[few] for kind in KINDS}
    images["JPEG 90"] = np.stack([as_jpeg(image) for image in images["rgb"]])  # type: ignore[index]
    quality = {
        name: {"PSNR": percentiles(psnr, images["rgb"], found), "SSIM": percentiles(ssim, images["rgb"], found)}
        for name, found in images.items()
        if name != "rgb"
    }
    return {
        "conditions": conditions(count, "warm and cold"),
        "bytes": {kind: open_store(path).manifest.row_bytes for kind, path in stores.items()},
        "spent": spent,
        "quality": quality,
        "training": trained_shares(images, options.seeds) if options.seeds else {},
    }


def as_jpeg(image: Images) -> Images:
    """The image after it was a JPEG of quality 90."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=90)
    return np.asarray(Image.open(file).convert("RGB"))


def percentiles(of: Callable[[Images, Images], float], expected: Images, found: Images) -> list[float]:
    """Median, 5th percentile and least value of a comparison of images."""
    values = [of(one, other) for one, other in zip(expected, found, strict=True)]
    return [float(value) for value in np.percentile(values, [50, 5, 0])]


def psnr(expected: Images, found: Images) -> float:
    """Peak signal-to-noise ratio in dB; 100 for equal images."""
    error = np.square(expected.astype(float) - found).mean()
    return 10 * np.log10(255**2 / error) if error else 100.0


def ssim(expected: Images, found: Images) -> float:
    """Structural similarity (Wang et al. 2004) with windows of 7x7, the mean over the channels."""
    a, b = (torch.from_numpy(image.copy()).permute(2, 0, 1).double() for image in (expected, found))
    mean_a, mean_b, aa, bb, ab = (avg_pool2d(each[None], 7, 1)[0] for each in (a, b, a * a, b * b, a * b))
    var_a, var_b, cov = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    top = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    return float((top / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean())


def trained_shares(images: dict[Any, Images], seeds: int) -> dict[str, list[float]]:
    """The accuracy of each run for each kind of image."""
    torch.set_num_threads(2)
    halves = {
        name: [torch.from_numpy(np.ascontiguousarray(half)) for half in np.split(found, 2, axis=2)]
        for name, found in images.items()
    }
    shares: dict[str, list[float]] = {name: [] for name in images}
    for seed in range(seeds):
        for name, (left, right) in halves.items():
            shares[name].append(trained_share(left, right, seed))
            print(f"seed {seed}, {name}: {shares[name][-1]:.4f}", file=sys.stderr, flush=True)
    return shares


def trained_share(train: Tensor, test: Tensor, seed: int) -> float:
    """Train on crops of some images; return the accuracy on crops of the others."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, len(train)))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        crops, labels = draw_crops(train)
        optimizer.zero_grad()
        cross_entropy(model(crops), labels).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        right = [
            (model(crops).argmax(1) == labels).float().mean() for crops, labels in (draw_crops(test) for _ in range(40))
        ]
    return float(torch.stack(right).mean())


def draw_crops(images: Tensor) -> tuple[Tensor, Tensor]:
    """Random crops, float32 (B, 3, H, W), and the numbers of their images."""
    labels = torch.randint(len(images), (CROPS,))
    tops, lefts = (torch.randint(size - CROP + 1, (CROPS,)).tolist() for size in images.shape[1:3])
    crops = [
        images[label, top : top + CROP, left : left + CROP]
        for label, top, left in zip(labels.tolist(), tops, lefts, strict=True)
    ]
    return torch.stack(crops).permute(0, 3, 1, 2).float() / 128 - 1, labels


def row(name: str, values: list[str], ratios: list[float]) -> str:
    """A row of the table, with the ratios to RGB."""
    return f"| {' | '.join([name, *values, ', '.join(f'{ratio:.2f}' for ratio in ratios[1:])])} |"


def table(facts: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    nbytes = [facts["bytes"][kind] for kind in KINDS]
    lines = [
        f"| | {' | '.join(KINDS)} | ratios |",
        f"|{'---|' * (len(KINDS) + 2)}",
        row("bytes of a row", [f"{one:,}" for one in nbytes], [one / nbytes[0] for one in nbytes]),
    ]
    for name, kinds in facts["spent"].items():
        medians = [f"{statistics.median(kinds[kind]):,.3f}" for kind in KINDS]
        ratios = [statistics.median(b / a for a, b in zip(kinds["rgb"], kinds[kind], strict=True)) for kind in KINDS]
        lines.append(row(name, medians, ratios))
    lines += ["", "| against RGB: median (5%, worst) | PSNR, dB | SSIM |", "|---|---|---|"]
    for name, found in facts["quality"].items():
        cells = [
            f"{found['PSNR'][0]:.1f} ({found['PSNR'][1]:.1f}, {found['PSNR'][2]:.1f})",
            f"{found['SSIM'][0]:.4f} ({found['SSIM'][1]:.4f}, {found['SSIM'][2]:.4f})",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name, shares in facts["training"].items():
        differences = np.subtract(shares, facts["training"]["rgb"]) * 100
        error = differences.std(ddof=1) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
        mean = 100 * float(np.mean(shares))
        lines.append(f"{name}: {mean:.2f}% accuracy, {differences.mean():+.2f} ± {error:.2f} against RGB")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=2000, help="images to build from (default: 2000)")
    parser.add_argument("--rows", type=int, default=20_000, help="rows to read from a disk (default: 20000)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder for the stores (default: build)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="pixels-", dir=options.scratch))
    try:
        source = link_images(find_tree(options.source), options.images, scratch / "tree")
        facts = measure(source, scratch, options)
    finally:
        shutil.rmtree(scratch)
    print(json.dumps(facts) if options.json else f"{heading(facts['conditions'])}\n{table(facts)}")


if __name__ == "__main__":
    main()
