"""Worker threads with queues, as one writes them by hand: `--data jpeg-threads` of examples/train_resnet50.py.

Threads take paths and put pictures, decoded by Pillow, on a queue; one more makes batches of those, and puts them on
another.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from bench.peers.harness.peer import Arm, Batches, Peer, Source


def read(source: Source, folder: Path) -> Callable[[], Batches]:
    """The example's feed."""
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
