"""FFCV: a .beton file of raw images.

Settings are from "Working with Image Data" (`write_mode="raw"`), "Writing a dataset" (`from_indexed_dataset`, which
decodes with Pillow in its workers), "Making an FFCV dataloader" and "Tuning Guide" (`os_cache=True` for datasets that
fit into memory, `OrderOption.RANDOM`) in its documentation. RGBImageField is used, because its decoder copies in
parallel and NDArrayDecoder does not. Augmentation is that of its ImageNet example, with NormalizeImage before ToTensor,
so that it runs on the CPU.

FFCV allocates its buffers for every epoch. Long epochs, in which every index comes several times, hide that cost as an
epoch of ImageNet would.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.images import decode_pair
from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import MEAN, STD


class IndexedImages:
    """The indexed dataset that FFCV's writer reads in its workers."""

    def __init__(self, source: Source) -> None:
        self.files, self.size = source.files, source.size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return decode_pair(self.files[index], self.size)


def build(source: Source, folder: Path) -> None:
    """Write one .beton file."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    writer = DatasetWriter(str(folder / "rows.beton"), fields, num_workers=source.workers)
    writer.from_indexed_dataset(IndexedImages(source))


def read(source: Source, folder: Path, *, augmented: bool = False, device: Any = None) -> Callable[[], Batches]:
    """Return epochs of FFCV's Loader, with every index `copies` times. `device`: its ToDevice copies batches there."""
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToDevice, ToTensor, ToTorchImage

    image: list[Any] = [SimpleRGBImageDecoder(), ToTensor()]
    if augmented:
        mean, std = (np.array(values) * 255 for values in (MEAN, STD))
        image = [RandomResizedCropRGBImageDecoder((source.crop, source.crop)), RandomHorizontalFlip()]
        image += [NormalizeImage(mean, std, np.float32), ToTensor(), ToTorchImage()]
    label: list[Any] = [IntDecoder(), ToTensor()]
    if device is not None:
        image.append(ToDevice(device, non_blocking=True))
        label.append(ToDevice(device, non_blocking=True))
    loader = Loader(
        str(folder / "rows.beton"),
        source.batch_size,
        num_workers=source.workers,
        os_cache=True,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(len(source.files), dtype="uint64"), source.copies),
        pipelines={"image": image, "label": label},
    )
    return lambda: loader


PEER = Peer(
    title="FFCV, raw",
    modules=("torch.utils.data", "ffcv.loader", "ffcv.writer", "PIL.Image"),
    distributions=("ffcv", "numba", "torch", "pillow"),
    arms=(
        Arm("FFCV, raw", read),
        Arm("FFCV, raw, its own transforms", partial(read, augmented=True), augmented=True),
    ),
    build=build,
    decoder="Pillow",
    requirements="""
        ffcv==1.0.2
        assertpy==1.1
        fastargs==1.2.0
        llvmlite==0.50.0
        numba==0.68.1
        opencv-python==5.0.0.93
        packaging==26.3
        psutil==7.2.2
        pytorch-pfn-extras==0.9.0
        terminaltables==3.1.10
    """,
    debian=("g++", "pkg-config", "python3-dev", "libopencv-dev", "libturbojpeg0-dev"),  # it is compiled here
)
