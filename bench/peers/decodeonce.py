"""This project, in the environment that `make` makes: `prep build` with two processes, then the Loader.

Settings are its defaults but for the workers and the threads; `shuffle="full"` is every row at random.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.peers.harness.peer import Arm, Batches, Peer, Source


def build(source: Source, folder: Path) -> None:
    """A store, as `prep build imagenet --workers 2` builds it."""
    from decodeonce.prep.build import Work
    from decodeonce.prep.build import build as build_store
    from decodeonce.prep.recipe import Recipe
    from decodeonce.prep.sources import open_imagenet

    recipe = Recipe(height=source.size, width=source.size, shuffle_seed=0)
    build_store(open_imagenet(source.tree), folder / "store", recipe, Work(workers=source.workers))


def read(source: Source, folder: Path) -> Callable[[], Batches]:
    """The Loader's epochs, one after the other."""
    from decodeonce import Loader

    loader = Loader(folder / "store", batch_size=source.batch_size, shuffle="full", threads=source.workers)
    return lambda: (pair for _ in range(source.copies) for pair in loader)


PEER = Peer(
    title="decodeonce",
    modules=("torch", "decodeonce.loader"),
    build_modules=("decodeonce.prep",),
    distributions=("torch", "numpy", "simplejpeg", "pillow-simd", "pillow"),
    # pillow-simd rounds some two values in a thousand to the level beside the one that Pillow takes.
    arms=(Arm("decodeonce Loader", read, exact=False),),
    build=build,
    decoder="simplejpeg and pillow-simd",
    over="here",
)
