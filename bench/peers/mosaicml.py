"""MosaicML Streaming: MDS shards of arrays with fixed type and shape, in a local folder.

Settings are from "Dataset Format", "Parallel dataset conversion" (one folder per process, then `merge_index`), "Main
Concepts" (the dataset gets batch_size as well) and "Replication and Sampling" in its documentation. `__getitem__` of a
subclass augments. The package requires numpy<2.2, but works with the numpy of constraints.txt. Clients of cloud storage
are left out, because nothing here imports them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.peers.harness.images import decode, in_shares
from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import augmented_rows

# streaming.vision is not needed here, but imports torchvision, whose wheels do not work with a CPU build of torch.
sys.modules.setdefault("streaming.vision", ModuleType("streaming.vision"))


def fill(share: int, shares: int, source: Source, folder: Path) -> None:
    """Write the shards of one process, with the default size."""
    from streaming import MDSWriter

    shape = ",".join(map(str, source.shape))
    with MDSWriter(out=str(folder / str(share)), columns={"image": f"ndarray:uint8:{shape}", "label": "int"}) as shards:
        for path, label in source.files[share::shares]:
            shards.write({"image": decode(path, source.size), "label": label})


def build(source: Source, folder: Path) -> None:
    """Write one folder per process, and an index of all."""
    from streaming.base.util import merge_index

    in_shares(fill, source.workers, source, folder)
    merge_index(str(folder), keep_local=True)


def read(source: Source, folder: Path, *, augmented: bool = False) -> Callable[[], Batches]:
    """Return epochs of a StreamingDataset without a remote, in a DataLoader."""
    from streaming import Stream, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    transform: Any = augmented_rows(source.crop) if augmented else None

    class Augmented(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return {**sample, "image": transform(sample["image"].copy())}

    clean_stale_shared_memory()  # a run that was killed may have left some
    streams = [Stream(local=str(folder), repeat=source.copies)]
    dataset = (Augmented if augmented else StreamingDataset)(
        streams=streams, shuffle=True, batch_size=source.batch_size
    )
    loader = DataLoader(dataset, source.batch_size, num_workers=source.workers, persistent_workers=True)
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


PEER = Peer(
    title="MosaicML Streaming",
    modules=("torch.utils.data", "streaming", "PIL.Image"),
    distributions=("mosaicml-streaming", "torch", "pillow"),
    arms=(
        Arm("MosaicML Streaming", read),
        Arm("MosaicML Streaming, torchvision", partial(read, augmented=True), augmented=True),
    ),
    build=build,
    decoder="Pillow",
    requirements="""
        mosaicml-streaming==0.13.0
        brotli==1.2.1
        catalogue==2.0.10
        certifi==2026.10.18
        charset-normalizer==3.5.2
        cramjam==2.14.0
        hf-xet==1.8.0
        huggingface_hub==0.36.2
        idna==3.20
        packaging==26.3
        python-snappy==0.7.3
        PyYAML==6.0.3
        regex==2026.11.15
        requests==2.34.2
        safetensors==0.8.0
        tokenizers==0.22.2
        transformers==4.57.6
        urllib3==2.8.0
        zstd==1.5.7.2
    """,
)
