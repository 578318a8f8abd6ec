"""tensordict: memory-mapped tensors of images and labels, indexed a batch at a time.

Settings are from "Batched data loading with tensorclasses" in its documentation, the tutorial that loads ImageNet. A
DataLoader with two workers and batches of 64 fills the tensors, with channels first. A DataLoader without workers then
indexes the tensordict with a whole batch, and torch's threads copy it. A collate function augments the batch at once;
the tutorial also pins it, which a CPU does not need. Its crop is random and not resized. Unlike the tutorial, this peer
shuffles. A long epoch is several epochs of the DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import MEAN, STD
from bench.peers.torch_pillow import DecodedImages

WRITE_BATCH = 64


class ChannelsFirst(DecodedImages):
    """The same dataset with channels first, like torchvision's PILToTensor."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = super().__getitem__(index)
        return image.permute(2, 0, 1), label


def build(source: Source, folder: Path) -> None:
    """Write a file of images and a file of labels."""
    import torch
    from tensordict import TensorDict
    from torch.utils.data import DataLoader

    count = len(source.files)
    images = torch.zeros((), dtype=torch.uint8).expand(count, 3, source.size, source.size)
    targets = torch.zeros((), dtype=torch.int64).expand(count)
    rows = TensorDict({"images": images, "targets": targets}, batch_size=[count]).memmap_like(folder)
    first = 0
    dataset: Any = ChannelsFirst(source)  # torch asks for its Dataset, but __len__ and __getitem__ are enough
    for images, targets in DataLoader(dataset, WRITE_BATCH, num_workers=source.workers):
        batch = TensorDict({"images": images, "targets": targets}, batch_size=[len(images)])
        rows[first : first + len(images)] = batch
        first += len(images)


def augment(images: Any, size: int) -> Any:
    """Normalize, randomly crop and randomly flip a batch."""
    import torch

    mean, std = (torch.tensor(values).view(3, 1, 1) * 255 for values in (MEAN, STD))
    images = (images - mean) / std
    count, _, height, width = images.shape
    rows = torch.randint(height - size, (count, 1)) + torch.arange(size)
    columns = torch.randint(width - size, (count, 1)) + torch.arange(size)
    images = images.gather(2, rows[:, None, :, None].expand(count, 3, size, width))
    images = images.gather(3, columns[:, None, None, :].expand(count, 3, size, size))
    flipped = torch.rand(count, 1, 1, 1) < 0.5
    return images.masked_fill(flipped, 0.0) + images.masked_fill(~flipped, 0.0).flip(-1)


def read(source: Source, folder: Path, *, augmented: bool = False) -> Callable[[], Batches]:
    """Return shuffled epochs."""
    import torch
    from tensordict import TensorDict
    from torch.utils.data import DataLoader

    def collate(batch: Any) -> tuple[Any, Any]:
        images = augment(batch["images"], source.crop) if augmented else batch["images"]
        return images, batch["targets"]

    torch.set_num_threads(source.workers)
    loader = DataLoader(TensorDict.load_memmap(folder), source.batch_size, shuffle=True, collate_fn=collate)
    return lambda: (batch for _ in range(source.copies) for batch in loader)


PEER = Peer(
    title="tensordict",
    modules=("torch.utils.data", "tensordict", "PIL.Image"),
    distributions=("tensordict", "torch", "pillow"),
    arms=(
        Arm("tensordict, memory-mapped", read),
        Arm(
            "tensordict, memory-mapped, its tutorial's transforms",
            partial(read, augmented=True),
            augmented=True,
            note="for a GPU; random crop without resize",
        ),
    ),
    build=build,
    decoder="Pillow",
    requirements="""
        tensordict==0.15.3
        cloudpickle==3.1.2
        packaging==26.3
        pyvers==0.2.3
    """,
)
