"""This project in .venv: `prep build` with two processes, then the Loader.

Settings are the defaults, except for the number of workers and threads. `shuffle="full"` reads every row at random.
Augmentation is that of docs/how-to/augmentation.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.peers.harness.peer import Arm, Batches, Peer, Source
from decodeonce.host import installed_version


def build(source: Source, folder: Path) -> None:
    """Build a store like `prep build imagenet --workers 2`."""
    from decodeonce.prep.building.build import build as build_store
    from decodeonce.prep.building.pool import WorkSettings
    from decodeonce.prep.recipe import Recipe
    from decodeonce.prep.sources.imagenet import open_imagenet

    recipe = Recipe(height=source.size, width=source.size, shuffle_seed=0)
    build_store(open_imagenet(source.tree), folder / "store", recipe, WorkSettings(workers=source.workers))


def read(source: Source, folder: Path, *, augmented: bool = False) -> Callable[[], Batches]:
    """Return epochs of the Loader."""
    import torch

    from decodeonce import Loader
    from decodeonce.augment import Augment, Normalize, RandomFlip, RandomResizedCrop

    torch.set_num_threads(source.workers)
    augment = Augment(RandomResizedCrop(source.crop), RandomFlip(), Normalize("imagenet")) if augmented else None
    batch_size, threads = source.batch_size, source.workers
    loader = Loader(folder / "store", batch_size=batch_size, shuffle="full", threads=threads, transform=augment)
    return lambda: ((batch.images, batch.labels) for _ in range(source.copies) for batch in loader)


PEER = Peer(
    title="decodeonce",
    modules=("torch", "decodeonce.loader"),
    build_modules=("decodeonce.prep",),
    distributions=("torch", "numpy", "simplejpeg", "pillow-simd", "pillow"),
    # pillow-simd rounds about two values in a thousand to a level next to Pillow's.
    arms=(
        Arm("decodeonce Loader", read, exact=False),
        Arm("decodeonce Loader, Augment", partial(read, augmented=True), augmented=True),
    ),
    build=build,
    decoder=f"simplejpeg and {'pillow-simd' if installed_version('pillow-simd') else 'Pillow'}",
    over="here",
)
