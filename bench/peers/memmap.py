"""torch's DataLoader over a NumPy memory map: by sample, and by batch with `__getitems__` of the dataset.

Settings are from "torch.utils.data" in PyTorch's documentation (`__getitems__`, `collate_fn`, `persistent_workers`) and
"numpy.lib.format.open_memmap" in NumPy's. Two processes decode with Pillow, each into its own rows of the map.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.images import decode, in_shares
from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import augmented_rows


def fill(share: int, shares: int, source: Source, path: Path) -> None:
    """Decode the rows of one process."""
    images = np.load(path, mmap_mode="r+")
    for row in range(share, len(source.files), shares):
        images[row] = decode(source.files[row][0], source.size)


def build(source: Source, folder: Path) -> None:
    """Write an array of pixels and an array of labels."""
    shape = (len(source.files), *source.shape)
    np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape).flush()
    np.save(folder / "labels.npy", np.array([label for _, label in source.files]))
    in_shares(fill, source.workers, source, folder / "images.npy")


class MemmapRows:
    """A map-style dataset over np.memmap that has each row `copies` times. Each worker maps the files."""

    def __init__(self, folder: Path, copies: int = 1, transform: Callable[[Any], Any] | None = None) -> None:
        self.folder, self.copies, self.transform = folder, copies, transform
        self.count = len(np.load(folder / "labels.npy", mmap_mode="r"))
        self.images: np.ndarray | None = None

    def __len__(self) -> int:
        return self.count * self.copies

    def open(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels and labels; map the files if necessary."""
        if self.images is None:
            self.images = np.load(self.folder / "images.npy", mmap_mode="r")
            self.labels = np.load(self.folder / "labels.npy")
        return self.images, self.labels

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        images, labels = self.open()
        row = index % self.count
        image = torch.from_numpy(images[row].copy())
        return self.transform(image) if self.transform else image, int(labels[row])


class RowsByBatch(MemmapRows):
    """The same dataset, but it reads a batch at once."""

    def __getitems__(self, indices: list[int]) -> tuple[Any, Any]:
        import torch

        images, labels = self.open()
        rows = np.array(indices) % self.count
        return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])


def return_batch(batch: Any) -> Any:
    """Collate function for batches that are complete already."""
    return batch


def epochs(dataset: Any, source: Source, **options: Any) -> Callable[[], Batches]:
    """Return shuffled epochs of torch's DataLoader with persistent workers."""
    from torch.utils.data import DataLoader

    options = {"shuffle": True, "num_workers": source.workers, "persistent_workers": True, **options}
    loader = DataLoader(dataset, source.batch_size, **options)
    return lambda: loader


def read_by_sample(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of samples, batched by the default collate function."""
    return epochs(MemmapRows(folder, source.copies), source)


def read_augmented(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of samples, each with its own crop and flip."""
    return epochs(MemmapRows(folder, source.copies, augmented_rows(source.crop)), source)


def read_by_batch(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of batches that the dataset reads."""
    return epochs(RowsByBatch(folder, source.copies), source, collate_fn=return_batch)


PEER = Peer(
    title="NumPy memmap",
    modules=("torch.utils.data", "PIL.Image"),
    distributions=("torch", "numpy", "pillow"),
    arms=(
        Arm("DataLoader, memmap by batch", read_by_batch),
        Arm("DataLoader, memmap by sample", read_by_sample),
        Arm("DataLoader, memmap by sample, torchvision", read_augmented, augmented=True),
    ),
    build=build,
    decoder="Pillow",
)
