"""Train the same network from JPEGs with torchvision's ImageFolder, and from a store.

    python -m bench.story [--images 3000] [--epochs 12] [--scratch build/story] [--json]

A tree of generated images is divided into imagenet/train and imagenet/val, which has every sixth image of each class.
A truncated image ends a loop over ImageFolder with an error, so images that `prep build` rejects are removed before.
Both ways train on random crops with the same settings, and use all cores; ImageFolder has one worker process per core.
Epochs are timed from the request of the first batch to the last step. Accuracy is measured on val after the last epoch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.conditions import conditions, heading
from bench.peers.harness.vision import MEAN, STD
from decodeonce import Loader, open_store
from decodeonce.augment import Augment, CenterCrop, Normalize, RandomFlip, RandomResizedCrop
from decodeonce.host import usable_cores
from decodeonce.store.table import read_rejects
from examples.sample import write_sample_tree
from tools.libraries import load

ROW, CROP, SCALE, BATCH = 160, 128, (0.35, 1.0), 64
SPLITS = ("train", "val")
Batches = Iterable[Iterable[Tensor]]


def prep(*arguments: object) -> None:
    """Run a `prep` command."""
    subprocess.run([sys.executable, "-m", "decodeonce.cli", *map(str, arguments)], check=True, stdout=sys.stderr)


def make_tree(folder: Path, images: int) -> Path:
    """Generate the images, and move every sixth of each class to val."""
    tree = folder / "imagenet"
    write_sample_tree(tree, count=images)
    for folder in sorted((tree / "train").iterdir()):
        (tree / "val" / folder.name).mkdir(parents=True)
        for path in sorted(folder.iterdir())[::6]:
            path.rename(tree / "val" / folder.name / path.name)
    return tree


def build(tree: Path, folder: Path) -> float:
    """Build a store of each split, remove rejected files from the tree, and return the seconds of both builds."""
    start = time.perf_counter()
    for split in SPLITS:
        prep("build", "folder", tree / split, folder / f"{split}.store", "--size", ROW, "--max-bad", "1%")
    seconds = time.perf_counter() - start
    for split in SPLITS:
        for reject in read_rejects(folder / f"{split}.store" / "rejects.tsv"):
            if reject.action == "rejected":
                (tree / split / reject.source).unlink()
    return seconds


def before(tree: Path) -> tuple[Batches, Batches]:
    """Return the batches of train and val from JPEGs, as torchvision's documentation shows."""
    datasets, transforms = load("torchvision.datasets"), load("torchvision.transforms")
    tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    crops = {
        "train": [transforms.RandomResizedCrop(CROP, scale=SCALE), transforms.RandomHorizontalFlip(), *tensor],
        "val": [transforms.Resize(ROW), transforms.CenterCrop(CROP), *tensor],
    }
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": usable_cores(), "persistent_workers": True}
    train, val = (datasets.ImageFolder(tree / split, transforms.Compose(crops[split])) for split in SPLITS)
    return (
        torch.utils.data.DataLoader(train, shuffle=True, drop_last=True, **options),
        torch.utils.data.DataLoader(val, **options),
    )


def after(folder: Path) -> tuple[Batches, Batches]:
    """Return the batches of train and val from the stores."""
    normalize = Normalize("imagenet")
    augment = Augment(RandomResizedCrop(CROP, scale=SCALE), RandomFlip(), normalize, seed=0)
    center = Augment(CenterCrop(CROP), normalize)
    return (
        Loader(folder / "train.store", batch_size=BATCH, transform=augment),
        Loader(folder / "val.store", batch_size=BATCH, transform=center, shuffle="none", tail="keep"),
    )


def layer(inputs: int, outputs: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def train(batches: Batches, val: Batches, classes: int, epochs: int) -> dict[str, Any]:
    """Train a network, and return the seconds of each epoch, the images/s of all and the accuracy on val."""
    torch.manual_seed(0)
    layers = [nn.AvgPool2d(2), layer(3, 32), layer(32, 64), layer(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(128, classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    seconds: list[float] = []
    count = 0
    for _ in range(epochs):
        start = time.perf_counter()
        for images, labels in batches:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += len(labels)
        schedule.step()
        seconds.append(time.perf_counter() - start)
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for images, labels in val:
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    return {"seconds": seconds, "images_per_s": count / sum(seconds), "loss": loss.item(), "accuracy": right / total}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make the images and stores, and train in both ways."""
    shutil.rmtree(options.scratch, ignore_errors=True)
    options.scratch.mkdir(parents=True)
    tree = make_tree(options.scratch, options.images)
    seconds = build(tree, options.scratch)
    stores = [open_store(options.scratch / f"{split}.store") for split in SPLITS]
    classes = len(stores[0].classes)
    ways: dict[str, Callable[[], tuple[Batches, Batches]]] = {
        "before": lambda: before(tree),
        "after": lambda: after(options.scratch),
    }
    facts = {"build_s": seconds, "rows": [len(store) for store in stores], "classes": classes}
    return {**facts, **{name: train(*make(), classes, options.epochs) for name, make in ways.items()}}


def table(facts: dict[str, Any], epochs: int) -> list[str]:
    """Return the rows of a table with both ways."""
    ways, build_s = [facts["before"], facts["after"]], facts["build_s"]
    trained = [sum(way["seconds"]) for way in ways]
    lines = {
        "building both stores, once": ["", f"{build_s:.1f} s"],
        "an epoch of training": [f"{seconds / epochs:.1f} s" for seconds in trained],
        f"{epochs} epochs, with the build": [f"{trained[0]:.0f} s", f"{trained[1] + build_s:.0f} s"],
        "training, images/s": [f"{way['images_per_s']:,.0f}" for way in ways],
        "accuracy on val": [f"{way['accuracy']:.1%}" for way in ways],
    }
    head = ["| | ImageFolder and DataLoader | store and Loader |", "|---|---|---|"]
    return [*head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in lines.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--scratch", type=Path, default=Path("build/story"))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    here = conditions(options.images, "files in the page cache (warm)")
    facts = measure(options)
    if options.json:
        print(json.dumps({"conditions": here, **facts}))
        return
    print(heading(here))
    print(f"{facts['rows'][0]:,} images of train, {facts['rows'][1]:,} of val, {facts['classes']} classes")
    print("\n".join(table(facts, options.epochs)))


if __name__ == "__main__":
    main()
