"""This project's StoreDataset in torch's DataLoader, for users who keep their samplers and CPU transforms.

Settings are from "Can I keep torch's DataLoader?" in docs/faq.md and "torch.utils.data" in PyTorch's documentation. A
long epoch is several epochs of the DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.harness.peer import OURS, Arm, Batches, Peer, Source
from bench.peers.harness.vision import augmented_rows


def read(source: Source, folder: Path, *, augmented: bool = False) -> Callable[[], Batches]:
    """Return shuffled epochs of torch's DataLoader with persistent workers."""
    from torch.utils.data import DataLoader

    from decodeonce import StoreDataset

    dataset = StoreDataset(folder / "store", transform=augmented_rows(source.crop) if augmented else None)
    options: dict[str, Any] = {"shuffle": True, "num_workers": source.workers, "persistent_workers": True}
    loader = DataLoader(dataset, source.batch_size, **options)
    return lambda: (batch for _ in range(source.copies) for batch in loader)


PEER = Peer(
    title="decodeonce StoreDataset",
    modules=("torch.utils.data", "decodeonce.loader"),
    distributions=("torch", "numpy"),
    arms=(
        Arm("decodeonce StoreDataset, DataLoader", read, exact=False, files_of=OURS),
        Arm(
            "decodeonce StoreDataset, DataLoader, torchvision",
            partial(read, augmented=True),
            augmented=True,
            files_of=OURS,
        ),
    ),
)
