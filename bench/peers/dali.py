"""NVIDIA DALI: its pipeline decodes JPEG files, on the CPU or on a GPU (for bench/gpu_peers.py).

Settings are from "Getting Started", "Pipeline" (`device_id=None`: no GPU), "fn.readers.file" and "fn.decoders.image" in
its documentation: two threads, `shuffle_after_epoch`, which shuffles all files, and the default queue of two batches.
EXIF rotation is ignored. Augmentation is that of its ImageNet example: `image_random_crop`, resize,
`crop_mirror_normalize`.

DALI is made for GPUs, which can decode as well. On a few CPU cores it has little advantage, which its row notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import MEAN, STD

AHEAD = 2  # batches
READER = "files"
NOTE = "made for GPUs, not for two CPU cores"


def make_pipeline(source: Source, *, augmented: bool = False, device_id: int | None = None) -> Any:
    """Return a pipeline that decodes on the CPU, or on the GPU with number `device_id` ("mixed")."""
    from nvidia.dali import fn, pipeline_def, types

    files = [str(path) for path, _ in source.files]
    labels = [label for _, label in source.files]
    size = source.size

    options = {"num_threads": source.workers, "device_id": device_id, "prefetch_queue_depth": AHEAD}
    decoder = {"device": "cpu" if device_id is None else "mixed", "output_type": types.RGB, "adjust_orientation": False}

    @pipeline_def(batch_size=source.batch_size, **options)
    def images_and_labels() -> tuple[Any, Any]:
        data, label = fn.readers.file(files=files, labels=labels, shuffle_after_epoch=True, name=READER)
        label = label if device_id is None else label.gpu()
        if augmented:
            image = fn.decoders.image_random_crop(data, **decoder)
            image = fn.resize(image, size=(source.crop, source.crop), interp_type=types.INTERP_LINEAR)
            mean, std = ([255 * value for value in values] for values in (MEAN, STD))
            flip = fn.random.coin_flip(probability=0.5)
            return fn.crop_mirror_normalize(image, dtype=types.FLOAT, mean=mean, std=std, mirror=flip), label
        image = fn.decoders.image(data, **decoder)
        image = fn.resize(image, resize_shorter=size, interp_type=types.INTERP_LINEAR)
        return fn.crop(image, crop=(size, size)), label

    pipeline = images_and_labels()
    pipeline.build()
    return pipeline


def read(source: Source, folder: Path, *, augmented: bool = False) -> Callable[[], Batches]:
    """Return epochs of a pipeline. Only the batches of an epoch are scheduled, so that DALI is idle between epochs.

    Otherwise the pipeline would run ahead while other peers are timed.
    """
    pipeline = make_pipeline(source, augmented=augmented)
    batches, first_call = len(source.files) // source.batch_size, True

    def epoch() -> Iterator[tuple[Any, Any]]:
        nonlocal first_call
        scheduled = 0
        for number in range(batches):
            while scheduled < min(number + AHEAD, batches):
                pipeline.schedule_run()
                scheduled += AHEAD if first_call else 1  # the very first call fills the queue
                first_call = False
            images, numbers = pipeline.share_outputs()
            yield np.asarray(images.as_tensor()), np.asarray(numbers.as_tensor())
            pipeline.release_outputs()

    return epoch


def read_on_gpu(source: Source, device_id: int) -> Callable[[], Batches]:
    """Return epochs that are decoded on a GPU, as in "PyTorch Plugin API reference" and its ResNet-50 example."""
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

    pipeline = make_pipeline(source, device_id=device_id)
    policy = {"last_batch_policy": LastBatchPolicy.DROP, "auto_reset": True}
    batches = DALIClassificationIterator(pipeline, reader_name=READER, **policy)
    return lambda: ((batch["data"], batch["label"]) for [batch] in batches)


PEER = Peer(
    title="NVIDIA DALI",
    modules=("nvidia.dali",),
    distributions=("nvidia-dali-cuda120", "numpy"),
    arms=(
        Arm("DALI on the CPU, JPEG files", read, decodes=True, exact=False, note=NOTE),
        Arm("DALI on the CPU, JPEG files, augmented", partial(read, augmented=True), True, augmented=True, note=NOTE),
    ),
    over="nothing",
    requirements="""
        nvidia-dali-cuda120==2.4.0
        nvidia-libnvcomp-cu12==5.3.0.16
        nvidia-nvimgcodec-cu12==0.9.0.20
        nvidia-nvjpeg-cu12==12.4.0.76
        nvidia-nvjpeg2k-cu12==0.11.0.51
        nvidia-nvtiff-cu12==0.8.0.82
        astunparse==1.6.3
        gast==0.7.0
        libcst==1.9.0
        makefun==1.16.0
        numpy==2.4.6
        nvtx==0.2.17
        optree==0.20.0
        packaging==26.3
        PyYAML==6.0.3
        six==1.17.0
        typing_extensions==4.16.0
        wheel==0.48.0
    """,
)
