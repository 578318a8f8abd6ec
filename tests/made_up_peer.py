"""A peer that tests/test_peers.py makes up: one arm delivers the pictures, the others do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.images import decoded
from bench.peers.harness.peer import Arm, Batches, Peer, Source


def build(source: Source, folder: Path) -> None:
    """All pixels in one file, all labels in another."""
    images, labels = zip(*decoded(source.files, source.size, source.workers), strict=True)
    np.save(folder / "images.npy", np.stack(images))
    np.save(folder / "labels.npy", labels)


def read(source: Source, folder: Path, *, lie: str = "") -> Callable[[], Batches]:
    """Shuffled epochs, with one fault or none."""
    images, labels = np.load(folder / "images.npy"), np.load(folder / "labels.npy")
    if lie == "labels":
        labels = np.roll(labels, 1)
    elif lie == "pixels":
        images[3, 7, 5, 1] ^= 1

    def epoch() -> Iterator[tuple[Any, Any]]:
        rows = np.random.default_rng(0).permutation(np.tile(np.arange(len(labels)), source.copies))
        for number, some in enumerate(rows.reshape(-1, source.batch_size)):
            if lie == "ends" and number == 2:
                os._exit(7)
            if lie != "batch" or number != 2:
                yield images[some], labels[some]

    return epoch


LIES = ("labels", "pixels", "batch", "ends")

PEER = Peer(
    title="made up",
    modules=("numpy",),
    distributions=("numpy",),
    arms=(Arm("honest", read), *(Arm(f"wrong: {lie}", partial(read, lie=lie)) for lie in LIES)),
    build=build,
    decoder="Pillow",
)
