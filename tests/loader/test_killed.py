"""Processes that are killed after every step give what one process gives: views, masks, draws by weight, others."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, PerImage, RandomFlip, RandomResizedCrop
from tests.conftest import COUNT
from tests.loader.conftest import RunForked
from tests.loader.test_augment import BATCH, make_views, shuffled
from tests.loader.test_foreign import PER_IMAGE
from tests.stores import make_store, random_images

Drawn = dict[int, list[Tensor]]

MASKS: Any = {"mask": "nearest", "depth": "bilinear"}
KINDS: dict[str, dict[str, Any]] = {
    "views": {"transform": make_views()},
    "masks": {"transform": Augment(RandomResizedCrop((7, 5)), RandomFlip(), seed=4, paired=MASKS)},
    "weights": {"transform": Augment(RandomFlip(), PerImage(shuffled), seed=4), "weights": "balanced"},
    "foreign": {"transform": Augment(PER_IMAGE["torch"](), PER_IMAGE["pillow"](), seed=4)},
}


def make_loaders(store: Path, kind: str, ranks: int, batch_size: int = BATCH) -> list[Loader]:
    """The Loaders of all ranks, before epoch 1."""
    settings = {**KINDS[kind], "batch_size": batch_size // ranks, "world_size": ranks}
    loaders = [Loader(store, rank=rank, **settings) for rank in range(ranks)]
    for loader in loaders:
        loader.set_epoch(1)
    return loaders


def by_draw(batches: Iterable[Batch]) -> Drawn:
    """All tensors of each row, by its number or, with weights, by its position."""
    found: Drawn = {}
    for batch in batches:
        parts = [part for part in batch.tensors() if len(part)]  # without the images of Views
        numbers = batch.rows if batch.positions is None else batch.positions
        found.update((number, [part[place] for part in parts]) for place, number in enumerate(numbers.tolist()))
    return found


KILLED = """
import os, signal, sys
from pathlib import Path
import torch._dynamo  # here, so that not every child imports it
from tests.loader.test_killed import KINDS, by_draw, make_loaders

store, folder = sys.argv[1], Path(sys.argv[2])
for ranks in map(int, sys.argv[3:]):
    if child := os.fork():  # this process only imports
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        continue
    for kind in KINDS:
        loaders, checkpoint = make_loaders(store, kind, ranks), folder / kind
        for loader in loaders:
            if checkpoint.exists():
                loader.load_state_dict(torch.load(checkpoint))
        epochs = [iter(loader) for loader in loaders]
        drawn = by_draw(map(next, epochs))
        torch.save(drawn, f"{checkpoint}.{loaders[0].steps_left}")
        torch.save(loaders[0].state_dict(), f"{checkpoint}.new")
        os.replace(f"{checkpoint}.new", checkpoint)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_killed_after_every_step_give_the_same_rows(run_forked: RunForked, tmp_path: Path) -> None:
    images = random_images(COUNT)
    columns: dict[str, NDArray[Any]] = {"mask": images[..., 0], "depth": images.astype(np.float32)}
    store = make_store(tmp_path / "s", images, np.repeat([0, 1, 2], [42, 15, 3]), columns=columns)
    assert run_forked(KILLED, store, tmp_path, *"12321") == (0, "", "")
    for kind in KINDS:
        (loader,) = make_loaders(store, kind, 1, COUNT)
        with loader:
            expected, found = by_draw(loader), Drawn()
        for left in range(COUNT // BATCH):
            found.update(torch.load(tmp_path / f"{kind}.{left}"))
        assert found.keys() == expected.keys() == set(range(COUNT))
        for number, parts in expected.items():
            assert len(parts) == len(found[number]), kind
            assert all(map(torch.equal, parts, found[number])), kind
