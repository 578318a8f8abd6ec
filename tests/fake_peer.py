"""A peer for tests/test_peers.py. Two of its arms deliver the right images; each of the others has one fault."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.images import decoded
from bench.peers.harness.peer import Arm, Batches, Peer, Source


def build(source: Source, folder: Path) -> None:
    """Write all pixels to one file and all labels to another."""
    images, labels = zip(*decoded(source.files, source.size, source.workers), strict=True)
    np.save(folder / "images.npy", np.stack(images))
    np.save(folder / "labels.npy", labels)


def read(source: Source, folder: Path, *, fault: str = "") -> Callable[[], Batches]:
    """Return shuffled epochs, with this fault if it is given."""
    images, labels = np.load(folder / "images.npy"), np.load(folder / "labels.npy")
    if fault == "labels":
        labels = np.roll(labels, 1)
    elif fault == "pixels":
        images[3, 7, 5, 1] ^= 1

    def epoch() -> Iterator[tuple[Any, Any]]:
        rows = np.random.default_rng(0).permutation(np.tile(np.arange(len(labels)), source.copies))
        for number, some in enumerate(rows.reshape(-1, source.batch_size)):
            if fault == "exit" and number == 2:
                os._exit(7)
            if fault != "missing batch" or number != 2:
                yield images[some], labels[some]

    return epoch


def prepare(source: Source, folder: Path) -> None:
    """Write all images, stretched to squares, as float32 between 0 and 1."""
    folder.mkdir(parents=True)
    images, labels = zip(*decoded(source.files, source.size, source.workers, stretch=True), strict=True)
    np.save(folder / "images.npy", np.stack(images) / np.float32(255))
    np.save(folder / "labels.npy", labels)


FAULTS = ("labels", "pixels", "missing batch", "exit")

PEER = Peer(
    title="fake peer",
    modules=("numpy",),
    distributions=("numpy",),
    arms=(
        Arm("correct", read),
        Arm("correct, stretched", read, decodes=True, prepare=prepare, stretched=True, unit_range=True),
        *(Arm(f"fault: {fault}", partial(read, fault=fault)) for fault in FAULTS),
    ),
    build=build,
    decoder="Pillow",
)
