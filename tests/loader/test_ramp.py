"""ramp: image sizes that change with the epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decodeonce import Loader
from decodeonce.loader.augment import Augment, CenterCrop, Normalize, RandomFlip, RandomResizedCrop, ramp


def resolution(epoch: int, min_res: int, max_res: int, end_ramp: int, start_ramp: int) -> int:
    """`get_resolution` from FFCV's published training script for ImageNet."""
    assert min_res <= max_res
    if epoch <= start_ramp:
        return min_res
    if epoch >= end_ramp:
        return max_res
    interp = np.interp([epoch], [start_ramp, end_ramp], [min_res, max_res])
    return int(np.round(interp[0] / 32)) * 32


@pytest.mark.parametrize(
    ("start", "end", "least", "most"),
    [
        (65, 76, 160, 192),  # ResNet-50, 88 epochs
        (41, 48, 160, 192),  # 56 epochs
        (11, 13, 160, 192),  # 16 epochs
        (0, 30, 64, 256),
        (0, 1, 128, 224),
    ],
)
def test_sizes_equal_ffcv(start: int, end: int, least: int, most: int) -> None:
    size = ramp(start, least, end, most)
    assert [size(epoch) for epoch in range(100)] == [resolution(epoch, least, most, end, start) for epoch in range(100)]


def test_sizes_between_are_multiples_within_bounds() -> None:
    assert [ramp(0, 100, 4, 116, multiple=8)(epoch) for epoch in range(6)] == [100, 104, 112, 112, 116, 116]
    assert [ramp(0, 100, 4, 110)(epoch) for epoch in range(6)] == [100, 100, 100, 100, 110, 110]


def test_repr_is_the_call() -> None:
    assert repr(RandomResizedCrop(ramp(65, 160, 76, 192))).startswith(
        "RandomResizedCrop(size=ramp(65, 160, 76, 192, multiple=32), "
    )


def test_sizes_can_decrease() -> None:
    assert [ramp(1, 256, 5, 128)(epoch) for epoch in range(7)] == [256, 256, 224, 192, 160, 128, 128]


def test_loader_uses_the_size_of_each_epoch(store: Path) -> None:
    size = ramp(0, 2, 3, 5, multiple=1)
    augment = Augment(RandomResizedCrop(size), RandomFlip(), CenterCrop(size), Normalize("imagenet"), seed=3)
    with Loader(store, batch_size=9, transform=augment) as loader:
        shapes = [{tuple(batch.images.shape) for batch in loader} for _ in range(5)]
        assert shapes == [{(9, 3, side, side)} for side in (2, 3, 4, 5, 5)]
        assert loader.stats()["memory"]["slots"] <= 5  # slots have the size of the store's images in every epoch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 160, 5, 192), "last_epoch is 5, expected an epoch after first_epoch=5"),
        ((-1, 160, 5, 192), "first_epoch is -1, expected a whole number of 0 or more"),
        ((0, 160.0, 5, 192), "first_size is 160.0, expected a whole number"),
        ((0, 160, 5, 0), "last_size is 0, expected a whole number of 1 or more"),
    ],
)
def test_invalid_ramps_are_rejected(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ramp(*arguments)
