"""WebDataset: tars of raw 256x256 pixels and labels.

Settings from its README, "Creating a WebDataset" and "WebDataset and DataLoader": `shardshuffle`, `shuffle(1000)`,
batches made in the workers, `WebLoader(batch_size=None)`. Two processes decode with Pillow, each into tars of its own.
Pixels are stored as their bytes, which is faster than its .npy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.pictures import decode, in_shares


def fill(share: int, shares: int, source: Source, folder: Path) -> None:
    """One process's tars, of a batch each."""
    import webdataset

    with webdataset.ShardWriter(f"{folder}/{share}-%05d.tar", maxcount=source.batch_size, verbose=0) as tars:
        for row in range(share, len(source.files), shares):
            path, label = source.files[row]
            tars.write({"__key__": f"{row:08d}", "rgb": decode(path, source.size).tobytes(), "cls": label})


def build(source: Source, folder: Path) -> None:
    """Tars in the folder."""
    in_shares(fill, source.workers, source, folder)


def read(source: Source, folder: Path) -> Callable[[], Batches]:
    """Tars shuffled, then samples within a buffer."""
    import webdataset

    tars = sorted(map(str, folder.glob("*.tar"))) * source.copies
    dataset = (
        webdataset.WebDataset(tars, shardshuffle=len(tars))
        .shuffle(1000)
        .map(lambda sample: (np.frombuffer(sample["rgb"], np.uint8).reshape(source.shape), int(sample["cls"])))
        .batched(source.batch_size)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=source.workers, persistent_workers=True)
    return lambda: loader


PEER = Peer(
    title="WebDataset",
    modules=("torch.utils.data", "webdataset", "PIL.Image"),
    distributions=("webdataset", "torch", "pillow"),
    arms=(Arm("WebDataset", read),),
    build=build,
    decoder="Pillow",
    requirements="""
        webdataset==1.0.2
        braceexpand==0.1.7
        PyYAML==6.0.3
    """,
)
