"""SPDL, which uses threads instead of processes: JPEG files decoded by FFmpeg, and rows of a NumPy memory map.

Settings are from "Building a Pipeline", "Concurrency" and "High-Level Loading Functions" in its documentation: a stage
with a concurrency, and a sink that holds a few batches. `load_image_batch` decodes several images per call, with the
filters of `get_video_filter_desc(scale_mode="crop")`. Every epoch has a new pipeline. For a GPU (bench/gpu_peers.py), a
thread of its own copies batches with `transfer_tensor_h2d`, as in "Pipeline Parallelism".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.peer import Arm, Batches, Peer, Source

IMAGES_PER_CALL = 32


def pipeline(
    order: Iterable[Any],
    task: Callable[[Any], Any],
    workers: int,
    per_batch: int = 1,
    copier: ThreadPoolExecutor | None = None,
) -> Iterator[Any]:
    """Run `task` for each item in threads, and yield batches of `per_batch` results. `copier` copies them to a GPU."""
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(order).pipe(task, concurrency=workers)
    builder = builder.aggregate(per_batch).pipe(concatenate) if per_batch > 1 else builder
    builder = builder.pipe(copy_to_gpu, executor=copier) if copier else builder
    with (batches := builder.add_sink(3).build(num_threads=workers + (per_batch > 1))).auto_stop():
        yield from batches


def concatenate(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Join several parts to one batch."""
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def copy_to_gpu(batch: tuple[Any, Any]) -> tuple[Any, Any]:
    """Copy a batch to the GPU through pinned memory, on the stream of this thread."""
    import spdl.io
    import torch

    images, labels = batch
    copied: tuple[Any, Any] = spdl.io.transfer_tensor_h2d((torch.as_tensor(images), torch.as_tensor(labels)))
    return copied


def read_jpeg(source: Source, folder: Path, copier: ThreadPoolExecutor | None = None) -> Callable[[], Batches]:
    """Return epochs that decode files in the loop."""
    import spdl.io

    random = np.random.default_rng(0)
    share = min(IMAGES_PER_CALL, source.batch_size)
    sides = {"scale_width": source.size, "scale_height": source.size, "scale_mode": "crop", "scale_algo": "bilinear"}
    filters = spdl.io.get_video_filter_desc(**sides, pix_fmt="rgb24")

    def load(rows: list[int]) -> tuple[Any, Any]:
        paths, labels = zip(*(source.files[row] for row in rows), strict=True)
        buffer = spdl.io.load_image_batch(list(map(str, paths)), width=None, height=None, filter_desc=filters)
        return spdl.io.to_numpy(buffer), np.array(labels)

    def epoch() -> Iterator[tuple[Any, Any]]:
        order = random.permutation(len(source.files)).reshape(-1, share).tolist()
        return pipeline(order, load, source.workers, source.batch_size // share, copier)

    return epoch


def read_memmap(source: Source, folder: Path, copier: ThreadPoolExecutor | None = None) -> Callable[[], Batches]:
    """Return epochs that read batches from a memory map in threads."""
    import torch

    images, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "labels"))
    random = np.random.default_rng(0)

    def gather(rows: np.ndarray) -> tuple[Any, Any]:
        return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])

    def epoch() -> Iterator[tuple[Any, Any]]:
        order = random.permutation(np.tile(np.arange(len(labels)), source.copies))
        return pipeline(order.reshape(-1, source.batch_size), gather, source.workers, copier=copier)

    return epoch


PEER = Peer(
    title="SPDL",
    modules=("torch", "spdl.pipeline", "spdl.io"),
    distributions=("spdl-core", "spdl-io", "torch"),
    arms=(
        Arm("SPDL, memmap by batch", read_memmap, files_of="memmap"),
        Arm("SPDL, JPEG files by FFmpeg", read_jpeg, decodes=True, exact=False),
    ),
    requirements="""
        spdl==0.8.0
        spdl-core==0.8.0
        spdl-io==0.8.0
    """,
    debian=("libavdevice59", "libavfilter8"),  # libraries of FFmpeg, which it loads to decode
)
