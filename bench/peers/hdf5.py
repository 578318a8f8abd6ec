"""h5py in torch's DataLoader, one sample at a time.

Settings are from "Datasets" and "Multiprocessing" in h5py's documentation: a contiguous dataset, and a file opened in
each reading process. Two processes decode with Pillow and one writes, because an HDF5 file has only one writer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.harness.images import decoded
from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import augmented_rows
from bench.peers.memmap import epochs


def build(source: Source, folder: Path) -> None:
    """Write a file with two contiguous datasets."""
    import h5py

    with h5py.File(folder / "rows.h5", "w") as file:
        images = file.create_dataset("images", (len(source.files), *source.shape), "u1")
        file["labels"] = [label for _, label in source.files]
        for row, (pixels, _) in enumerate(decoded(source.files, source.size, source.workers)):
            images[row] = pixels


class Hdf5Rows:
    """A map-style dataset that has each row `copies` times."""

    def __init__(self, source: Source, path: Path, transform: Callable[[Any], Any] | None = None) -> None:
        self.path, self.count, self.copies = path, len(source.files), source.copies
        self.transform = transform
        self.file: Any = None

    def __len__(self) -> int:
        return self.count * self.copies

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import h5py
        import torch

        if self.file is None:
            self.file = h5py.File(self.path, "r")
            self.images, self.labels = self.file["images"], self.file["labels"][:]
        row = index % self.count
        image = torch.from_numpy(self.images[row])
        return self.transform(image) if self.transform else image, int(self.labels[row])


def read(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of samples, batched by the default collate function."""
    return epochs(Hdf5Rows(source, folder / "rows.h5"), source)


def read_augmented(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of samples that are augmented in the workers."""
    return epochs(Hdf5Rows(source, folder / "rows.h5", augmented_rows(source.crop)), source)


PEER = Peer(
    title="HDF5 by h5py",
    modules=("torch.utils.data", "h5py", "PIL.Image"),
    distributions=("torch", "h5py", "pillow"),
    arms=(
        Arm("DataLoader, h5py by sample", read),
        Arm("DataLoader, h5py by sample, torchvision", read_augmented, augmented=True),
    ),
    build=build,
    decoder="Pillow",
)
