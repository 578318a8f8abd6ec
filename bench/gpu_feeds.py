"""The feeds of bench/gpu_peers.py: ways to bring shuffled batches to a device, each as its documentation says.

Every feed is a function that gets a Task and returns a function that starts an epoch. Images are uint8 (B, H, W, C),
labels int64 (B,), both on the device. Packages are imported when a feed is opened, because most are not installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bench.peers.harness.images import SAME_DECODER
from bench.peers.harness.peer import Source
from bench.training import Batches
from decodeonce import Loader

Epochs = Callable[[], Batches]
OURS = "decodeonce Loader"


@dataclass(frozen=True)
class Task:
    """What feeds load, and where to.

    Args:
        source: JPEG files, batch size and number of workers.
        store: Store with as many rows as `source` has files.
        folder: Folder for files that other loaders read. It has `images.npy` and `labels.npy`, which are the store's.
        device: Device of the batches.
    """

    source: Source
    store: Path
    folder: Path
    device: torch.device


def ours(task: Task) -> Epochs:
    """Load the store with the defaults."""
    loader = Loader(task.store, batch_size=task.source.batch_size, device=task.device)
    return lambda: loader


def memmap(task: Task) -> Epochs:
    """Load a NumPy memory map with torch's DataLoader and a prefetcher."""
    from bench.peers.memmap import MemmapRows

    return data_loader(MemmapRows(task.folder), task)


def jpegs(task: Task) -> Epochs:
    """Decode JPEG files in the workers of torch's DataLoader, with simplejpeg if it is installed."""
    from bench.peers.torch_pillow import DecodedImages

    return data_loader(
        DecodedImages(task.source), task, worker_init_fn=use_simplejpeg if find_spec("simplejpeg") else None
    )


def use_simplejpeg(worker: int) -> None:
    """Have a worker of torch's DataLoader decode with simplejpeg."""
    os.environ[SAME_DECODER] = "1"


def data_loader(dataset: Any, task: Task, **options: Any) -> Epochs:
    """Return epochs of torch's DataLoader with pinned memory, and a prefetcher.

    See "Memory Pinning" in https://docs.pytorch.org/docs/stable/data.html.
    """
    options |= {"shuffle": True, "num_workers": task.source.workers, "persistent_workers": True}
    loader = DataLoader(dataset, task.source.batch_size, pin_memory=task.device.type != "cpu", **options)
    return lambda: prefetched(loader, task.device)


def prefetched(batches: Iterable[Any], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Copy each batch to the device on a side stream, one batch ahead of training.

    This is what `data_prefetcher` in NVIDIA apex's ImageNet example does
    (https://github.com/NVIDIA/apex/blob/master/examples/imagenet/main_amp.py): the consumer's stream waits for the side
    stream, the next batch is taken from the loader and its copy is queued, and then the batch is trained on.
    """
    if device.type == "cpu":
        yield from batches
        return
    side, source = torch.Stream(device), iter(batches)

    def copy_next() -> tuple[Tensor, ...] | None:
        batch = next(source, None)
        if batch is None:
            return None
        with side:
            return tuple(part.to(device, non_blocking=True) for part in batch)

    copied = copy_next()
    while copied is not None:
        consumer = torch.accelerator.current_stream(device)
        consumer.wait_stream(side)
        for part in copied:
            part.record_stream(consumer)
        images, labels = copied
        copied = copy_next()
        yield images, labels


def ffcv(task: Task) -> Epochs:
    """Load a .beton file of raw images with FFCV, and its ToDevice."""
    from bench.peers.ffcv import build, read

    if not (task.folder / "rows.beton").exists():
        build(task.source, task.folder)
    return plain(read(task.source, task.folder, device=task.device))


def dali(task: Task) -> Epochs:
    """Decode JPEG files on the GPU with DALI."""
    from bench.peers.dali import read_on_gpu

    return plain(read_on_gpu(task.source, task.device.index or 0))


def spdl_memmap(task: Task) -> Epochs:
    """Load a NumPy memory map in SPDL's threads."""
    from bench.peers.spdl import read_memmap

    return plain(read_memmap(task.source, task.folder, copier_to(task.device)))


def spdl_jpegs(task: Task) -> Epochs:
    """Decode JPEG files in SPDL's threads, with FFmpeg."""
    from bench.peers.spdl import read_jpeg

    return plain(read_jpeg(task.source, task.folder, copier_to(task.device)))


def copier_to(device: torch.device) -> ThreadPoolExecutor | None:
    """Return the thread in which SPDL copies batches to a GPU."""
    return None if device.type == "cpu" else ThreadPoolExecutor(1)


def plain(epochs: Callable[[], Iterable[Any]]) -> Epochs:
    """Return epochs of tensors with labels as int64 (B,), because loaders differ in that."""
    return lambda: ((torch.as_tensor(images), torch.as_tensor(labels).flatten().long()) for images, labels in epochs())


FEEDS: dict[str, Callable[[Task], Epochs]] = {
    OURS: ours,
    "DataLoader, memory map, prefetcher": memmap,
    "DataLoader, JPEG files, prefetcher": jpegs,
    "FFCV": ffcv,
    "DALI, JPEG files decoded on the GPU": dali,
    "SPDL, memory map": spdl_memmap,
    "SPDL, JPEG files by FFmpeg": spdl_jpegs,
}
