"""Build a store from images, load it and print rates: `python examples/demo.py SRC [--scratch build]`.

SRC is an ImageNet tree (SRC/train/<wnid>/*.JPEG). `make demo` generates a small one and runs this script on it.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":  # before the imports, which take seconds: Ctrl-C ends this without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from decodeonce import Loader, Store, open_store

BATCH = 256
SMALL_STORE = 100_000  # rows; a larger store is not rebuilt by a second demo
IMAGES_DECODED_IN_LOOP = 1_500


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # each line at once in a pipe, too
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path("build"))
    options = parser.parse_args()
    root = options.scratch / f"demo-{options.source.resolve().name}.store"
    build(options.source, root)
    store = open_store(root)
    gbytes = len(store) * store.manifest.row_bytes / 1e9
    print(f"   {store.images.shape} uint8, {gbytes:.2f} GB, {len(store.classes)} classes")
    prep("show", root, "--out", options.scratch / "demo-sheet.png")
    loaded = load(root)
    decoded = decode_in_loop(options.source, store)
    print(f"\nAn epoch from the store is {loaded / decoded:.0f} times as fast as decoding in the loop.")
    command = os.path.relpath(Path(sys.executable).with_name("prep"))
    print(f"Open {options.scratch / 'demo-sheet.png'}, and try:\n   {command} info {root}\n   {command} verify {root}")


def prep(*arguments: str | Path) -> None:
    """Print a `prep` command and run it with this Python."""
    words = list(map(str, arguments))
    print("\n$ prep", " ".join(words))
    if code := subprocess.call([sys.executable, "-m", "decodeonce.cli", *words]):
        sys.exit(code)  # prep has said why


def build(source: Path, root: Path) -> None:
    """Build the store, or resume an unfinished build. A large finished store is kept."""
    if (root / "store.json").exists() and len(open_store(root)) < SMALL_STORE:
        shutil.rmtree(root)
    if (root / "store.json").exists():
        print(f"{root} exists already")
        return
    start = time.perf_counter()
    prep("build", "imagenet", source, root)
    seconds = time.perf_counter() - start
    rows = len(open_store(root))
    print(f"   {rows} images decoded and written to disk in {seconds:.1f} s: {rows / seconds:,.0f} images/s")


def load(root: Path) -> float:
    """Load two shuffled epochs and return the images/s of the second one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"\nLoader(store, batch_size={BATCH}, shuffle='full', device='{device}')")
    rate = 0.0
    with Loader(root, batch_size=BATCH, device=device, shuffle="full", seed=0, tail="keep") as loader:
        for epoch in range(2):
            count, checksum, start = 0, 0, time.perf_counter()
            for images, labels in tqdm(loader, "   loading", leave=False, disable=None):
                count += len(images)
                checksum += int(labels.sum())
            if device == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            rate = count / seconds
            gbytes = count * images[0].numel() / 1e9 / seconds
            print(f"   epoch {epoch}: {count} images in {seconds:.2f} s: {rate:,.0f} images/s, {gbytes:.2f} GB/s")
    return rate


def decode_in_loop(source: Path, store: Store) -> float:
    """Decode batches one by one, as a training loop without a store does, and return images/s."""
    from PIL import Image, ImageOps

    names = [sample.source for sample in store.samples]
    names = random.Random(0).sample(names, min(IMAGES_DECODED_IN_LOOP, len(names)))
    height, width = store.images.shape[1:3]
    print(f"\nDecoding {len(names)} of the same images in the loop, with Pillow in one process")
    start = time.perf_counter()
    for first in tqdm(range(0, len(names), BATCH), "   decoding", leave=False, disable=None):
        rows = []
        for name in names[first : first + BATCH]:
            image = Image.open(source / name).convert("RGB")
            rows.append(np.asarray(ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)))
        torch.from_numpy(np.stack(rows))
    rate = len(names) / (time.perf_counter() - start)
    print(f"   {rate:,.0f} images/s")
    return rate


if __name__ == "__main__":
    main()
