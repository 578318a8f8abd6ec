"""Hand-written worker threads with queues: `--data jpeg-threads` of examples/train_resnet50.py.

Threads decode files with Pillow and put the images on a queue. Another thread makes batches and puts them on a second
queue.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from bench.peers.harness.peer import Arm, Batches, Peer, Source


def read(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of the example's feed."""
    from examples.train_resnet50 import JpegThreads

    options = Namespace(source=source.tree, batch_size=source.batch_size, size=source.size, threads=source.workers)
    feed = JpegThreads(options)
    return lambda: feed


PEER = Peer(
    title="threads with queues",
    modules=("examples.train_resnet50", "PIL.Image"),
    distributions=("torch", "pillow"),
    arms=(Arm("Threads and queues, JPEG files by Pillow", read, decodes=True),),
)
