"""LitData: chunks of 64 MB with tensors and labels, in a local folder.

Settings are from its README: `optimize(chunk_bytes="64MB", num_workers=2)`, which decodes with Pillow in its workers,
then StreamingDataset(shuffle=True) in a StreamingDataLoader, whose `transform` augments. A dataset cannot have a sample
several times, so a long epoch is several of LitData's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.harness.images import decode
from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import augmented_rows


def sample(size: int, file: tuple[str, int]) -> tuple[Any, int]:
    """Decode the sample that is stored for an image."""
    import torch

    return torch.from_numpy(decode(Path(file[0]), size).copy()), file[1]


def build(source: Source, folder: Path) -> None:
    """Write chunks and their index."""
    from litdata import optimize

    files = [(str(path), label) for path, label in source.files]
    options = {"chunk_bytes": "64MB", "num_workers": source.workers, "verbose": False}
    optimize(partial(sample, source.size), files, str(folder), **options)


def read(source: Source, folder: Path, *, augmented: bool = False) -> Callable[[], Batches]:
    """Return epochs of StreamingDataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset

    options: dict[str, Any] = {"shuffle": True}
    if augmented:
        transform = augmented_rows(source.crop)
        options["transform"] = lambda item: (transform(item[0]), item[1])
    dataset = StreamingDataset(str(folder), **options)
    options = {"num_workers": source.workers, "persistent_workers": True}
    loader = StreamingDataLoader(dataset, batch_size=source.batch_size, **options)
    return lambda: (batch for _ in range(source.copies) for batch in loader)


PEER = Peer(
    title="LitData",
    modules=("torch.utils.data", "litdata", "PIL.Image"),
    distributions=("litdata", "torch", "pillow"),
    arms=(
        Arm("LitData", read),
        Arm("LitData, torchvision", partial(read, augmented=True), augmented=True),
    ),
    build=build,
    decoder="Pillow",
    requirements="""
        litdata==0.2.76
        boto3==1.44.5
        botocore==1.44.5
        certifi==2026.10.18
        charset-normalizer==3.5.2
        idna==3.20
        jmespath==1.1.0
        lightning-utilities==0.15.3
        obstore==0.12.1
        packaging==26.3
        python-dateutil==2.9.0.post0
        requests==2.34.2
        s3transfer==0.19.3
        six==1.17.0
        tifffile==2026.3.3
        urllib3==2.8.0
    """,
)
