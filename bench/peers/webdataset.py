"""WebDataset: tars of raw 256x256 pixels and labels.

Settings are from its README, "Creating a WebDataset" and "WebDataset and DataLoader": `shardshuffle`, `shuffle(1000)`,
batches made in the workers, `WebLoader(batch_size=None)`. Two processes decode with Pillow, each into its own tars.
Pixels are stored as plain bytes, which is faster than .npy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.images import decode, in_shares
from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import augmented_rows


def fill(share: int, shares: int, source: Source, folder: Path) -> None:
    """Write the tars of one process, one batch each."""
    import webdataset

    with webdataset.ShardWriter(f"{folder}/{share}-%05d.tar", maxcount=source.batch_size, verbose=0) as tars:
        for row in range(share, len(source.files), shares):
            path, label = source.files[row]
            tars.write({"__key__": f"{row:08d}", "rgb": decode(path, source.size).tobytes(), "cls": label})


def build(source: Source, folder: Path) -> None:
    """Write tars to the folder."""
    in_shares(fill, source.workers, source, folder)


def read(source: Source, folder: Path, *, augmented: bool = False) -> Callable[[], Batches]:
    """Return epochs with shuffled tars and a shuffle buffer of samples."""
    import webdataset

    transform = augmented_rows(source.crop) if augmented else None

    def sample(stored: dict[str, Any]) -> tuple[Any, int]:
        image = np.frombuffer(stored["rgb"], np.uint8).reshape(source.shape)
        return transform(image.copy()) if transform else image, int(stored["cls"])

    tars = sorted(map(str, folder.glob("*.tar"))) * source.copies
    dataset = webdataset.WebDataset(tars, shardshuffle=len(tars)).shuffle(1000).map(sample).batched(source.batch_size)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=source.workers, persistent_workers=True)
    return lambda: loader


PEER = Peer(
    title="WebDataset",
    modules=("torch.utils.data", "webdataset", "PIL.Image"),
    distributions=("webdataset", "torch", "pillow"),
    arms=(
        Arm("WebDataset", read),
        Arm("WebDataset, torchvision", partial(read, augmented=True), augmented=True),
    ),
    build=build,
    decoder="Pillow",
    requirements="""
        webdataset==1.0.2
        braceexpand==0.1.7
        PyYAML==6.0.3
    """,
)
