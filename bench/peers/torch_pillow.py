"""torch's DataLoader over JPEG files, decoded by Pillow in its workers: the usual first solution.

Settings are from "torch.utils.data" in PyTorch's documentation and its ImageNet example: a map-style dataset,
`shuffle`, and worker processes that `persistent_workers` keeps between epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.harness.images import decode
from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import augmentation


class AugmentedImages:
    """A map-style dataset of augmented images and labels, with the transforms of PyTorch's ImageNet example."""

    def __init__(self, source: Source) -> None:
        self.files, self.transform = source.files, augmentation(source.crop, pil=True)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self.files[index]
        with Image.open(path) as file:
            return self.transform(file.convert("RGB")), label


class DecodedImages:
    """A map-style dataset of images, uint8 (size, size, 3), and labels."""

    def __init__(self, source: Source) -> None:
        self.files, self.size = source.files, source.size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        path, label = self.files[index]
        return torch.from_numpy(decode(path, self.size).copy()), label


def read(source: Source, folder: Path, *, dataset: Callable[[Source], Any] = DecodedImages) -> Callable[[], Batches]:
    """Return shuffled epochs."""
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"shuffle": True, "num_workers": source.workers, "persistent_workers": True}
    loader = DataLoader(dataset(source), source.batch_size, **options)
    return lambda: loader


PEER = Peer(
    title="torch DataLoader, Pillow",
    modules=("torch.utils.data", "PIL.Image"),
    distributions=("torch", "pillow"),
    arms=(
        Arm("DataLoader, JPEG files by Pillow", read, decodes=True),
        Arm(
            "DataLoader, JPEG files by Pillow, torchvision",
            partial(read, dataset=AugmentedImages),
            decodes=True,
            augmented=True,
        ),
    ),
)
