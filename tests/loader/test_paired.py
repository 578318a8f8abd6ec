"""Maps of the size of the images, such as masks, move with their images: Augment(..., paired={"mask": "nearest"})."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from decodeonce import Batch, Loader
from decodeonce.loader.augment import (
    Augment,
    CenterCrop,
    ColorJitter,
    Draws,
    MixUp,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Step,
)
from decodeonce.loader.augment.crop import resize_nearest
from decodeonce.loader.order import derive_key
from decodeonce.store import add_column
from tests.libraries import library
from tests.loader.meta_device import batch_of, run_on_device
from tests.stores import make_store, random_images

COUNT, HEIGHT, WIDTH = 40, 24, 18
MOVES: list[Step] = [RandomFlip(), CenterCrop(11), RandomCrop((9, 14))]
NONE_MOVE: list[Step] = [Normalize("imagenet"), ColorJitter(0.4), RandomErasing(1.0)]
WRONG: Any = {"mask": "cubic"}


def batch_with(images: Tensor, **columns: Tensor) -> Batch:
    return dataclasses.replace(batch_of(images), columns=columns)


def noise() -> Tensor:
    return torch.from_numpy(random_images(COUNT, shape=(HEIGHT, WIDTH, 3)))


@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
@pytest.mark.parametrize("step", MOVES, ids=repr)
def test_maps_move_with_their_images(step: Step, resampling: Any) -> None:
    images = noise()
    batch = batch_with(images, mask=images[..., 0].long() * 1000, depth=images.double())
    found = Augment(step, RandomFlip(), seed=4, paired={"mask": resampling, "depth": resampling})(batch)
    moved = found.images.permute(0, 2, 3, 1)
    assert not torch.equal(moved, images[:, : moved.shape[1], : moved.shape[2]])
    assert torch.equal(found.columns["mask"], moved[..., 0].long() * 1000)
    assert torch.equal(found.columns["depth"], moved.double())


@pytest.mark.parametrize("step", NONE_MOVE, ids=repr)
def test_maps_stay_if_no_pixel_moves(step: Step) -> None:
    mask = noise()[..., 0]
    assert torch.equal(Augment(step, paired={"mask": "nearest"})(batch_with(noise(), mask=mask)).columns["mask"], mask)


def test_resized_maps_equal_torchvision() -> None:
    functional: Any = library("torchvision.transforms.v2.functional")
    interpolation = library("torchvision.transforms.v2").InterpolationMode
    images, augment = (
        noise(),
        Augment(RandomResizedCrop((13, 20)), seed=4, paired={"mask": "nearest", "soft": "bilinear"}),
    )
    mask = images[..., 0]
    found = augment(batch_with(images, mask=mask, soft=mask)).columns
    draws = Draws(derive_key(4, 0, 0), torch.arange(COUNT))
    windows = RandomResizedCrop((13, 20)).windows(draws, HEIGHT, WIDTH).long().tolist()

    def expected(kind: Any, antialias: bool) -> Tensor:
        pairs = zip(mask[:, None], windows, strict=True)
        cropped = [functional.resized_crop(one, *window, [13, 20], kind, antialias) for one, window in pairs]
        return torch.cat(cropped)

    assert torch.equal(found["mask"], expected(interpolation.NEAREST_EXACT, antialias=False))
    assert (found["soft"].int() - expected(interpolation.BILINEAR, antialias=True).int()).abs().max() <= 1


def test_nearest_values_are_those_of_the_window() -> None:
    maps = torch.arange(HEIGHT * WIDTH).view(1, HEIGHT, WIDTH, 1)
    window = torch.tensor([[3.0, 2.0, 6.0, 8.0]], dtype=torch.float64)
    assert torch.equal(resize_nearest(maps, window, 6, 8), maps[:, 3:9, 2:10])
    assert torch.equal(resize_nearest(maps, window, 3, 4), maps[:, 4:9:2, 3:10:2])
    assert torch.equal(resize_nearest(maps, window, 12, 8), maps[:, 3:9, 2:10].repeat_interleave(2, 1))


def test_masks_are_the_same_after_a_resume_with_other_ranks(tmp_path: Path) -> None:
    images = random_images(COUNT, shape=(HEIGHT, WIDTH, 3))
    store = make_store(tmp_path / "s", images)
    add_column(store, "mask", images[..., 1])
    augment = Augment(RandomResizedCrop(10), RandomFlip(), paired={"mask": "nearest"})

    def masks(batches: Iterable[Batch]) -> dict[int, list[int]]:
        pairs = [pair for batch in batches for pair in zip(batch.rows, batch.columns["mask"].flatten(1), strict=True)]
        return {int(row): mask.tolist() for row, mask in pairs}

    with (
        Loader(store, batch_size=COUNT, transform=augment) as whole,
        Loader(store, batch_size=8, transform=augment) as loader,
    ):
        expected, found = masks(whole), {}
        assert {len(mask) for mask in expected.values()} == {100}
        for batch in loader:
            found.update(masks([batch]))
            rest = {}
            for rank in range(2) if loader.steps_left else ():
                with Loader(store, batch_size=4, rank=rank, world_size=2, transform=augment) as resumed:
                    resumed.load_state_dict(loader.state_dict())
                    rest.update(masks(resumed))
            assert {**found, **rest} == expected


def test_missing_column_is_named(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_images(8))
    add_column(store, "weight", np.ones(8))
    with pytest.raises(ValueError, match="paired has 'mask', which is not a column of the store; its columns: weight"):
        Loader(store, batch_size=4, transform=Augment(paired={"mask": "nearest"}))


@pytest.mark.parametrize("step", [*MOVES[:1], *NONE_MOVE, CenterCrop(4), RandomCrop(4), RandomResizedCrop(5)], ids=repr)
def test_maps_move_on_a_device_without_waiting(step: Step) -> None:
    columns = {"mask": torch.empty((9, 8, 6), dtype=torch.int64, device="meta")}
    batch = run_on_device(Augment(step, paired={"mask": "nearest"}), columns)
    assert batch.columns["mask"].shape == (9, *batch.images.shape[2:])


def keep(images: Tensor, draws: Draws) -> Tensor:
    return images


def test_errors_name_the_problem() -> None:
    with pytest.raises(ValueError, match=r"the step keep does not move maps; .* move_maps\(self, maps, draws, resamp"):
        Augment(RandomFlip(), keep, paired={"mask": "nearest"})
    with pytest.raises(ValueError, match="the step MixUp does not move maps"):
        Augment(MixUp(1.0, 3), paired={"mask": "nearest"})
    with pytest.raises(ValueError, match=r"expected 'mask' to be one of \('nearest', 'bilinear'\)"):
        Augment(paired=WRONG)
    with pytest.raises(ValueError, match=r"paired is \['mask'\], expected how to resize each map, such as \{"):
        Augment(paired=cast("Any", ["mask"]))
    augment = Augment(RandomFlip(), paired={"mask": "nearest"})
    with pytest.raises(ValueError, match=r"'mask', but this column is \(40, 3\), expected \(B, H, W\) or"):
        augment(batch_with(noise(), mask=torch.zeros(COUNT, 3)))
