"""A transform that returns its first batch unchanged is refused. Transforms of torchvision ignore unknown types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decodeonce import Batch, Loader
from decodeonce.loader.augment import MixUp, Normalize, PerImage, RandomFlip
from tests.conftest import COUNT
from tests.libraries import library


class PassesUnknownTypes(torch.nn.Module):
    """Does with a Batch what transforms of torchvision do."""

    def forward(self, *inputs: Any) -> Any:
        return inputs if len(inputs) > 1 else inputs[0]


def test_transform_that_returns_its_batch_unchanged_is_refused(store: Path) -> None:
    with Loader(store, batch_size=4, transform=PassesUnknownTypes()) as loader:
        message = r"transform PassesUnknownTypes returned its Batch unchanged\. .* use Augment\(PerImage\(\.\.\.\)\)"
        with pytest.raises(ValueError, match=message):
            next(iter(loader))


@pytest.mark.parametrize("step", [RandomFlip(), Normalize("imagenet"), MixUp(0.2, 3), PerImage(PassesUnknownTypes())])
def test_step_without_augment_is_refused(store: Path, step: Any) -> None:
    message = f"transform is {step!r}, expected a function with one parameter, a Batch; wrap steps in Augment(...)"
    with pytest.raises(TypeError, match=re.escape(message)):
        Loader(store, batch_size=4, transform=step)


def test_transform_may_only_look_if_it_returns_a_new_batch(store: Path, images: NDArray[np.uint8]) -> None:
    with Loader(store, batch_size=COUNT, transform=dataclasses.replace) as loader:
        (batch,) = loader
    assert np.array_equal(batch.images, images[batch.rows])


def invert_in_batch(batch: Batch) -> Batch:
    batch.images.bitwise_not_()
    return batch


def count_rows(batch: Batch) -> Batch:
    batch.columns["row"] = batch.rows
    return batch


def rest_after_first_batch(batch: Batch) -> Batch:
    return dataclasses.replace(batch) if batch.epoch == 0 else batch


@pytest.mark.parametrize("transform", [invert_in_batch, count_rows, rest_after_first_batch])
def test_transform_may_change_its_batch_in_place_or_only_some_batches(
    store: Path, transform: Callable[[Batch], Batch]
) -> None:
    with Loader(store, batch_size=COUNT, transform=transform) as loader:
        assert len([*loader, *loader]) == 2


def test_torchvision_transform_of_a_loader_is_refused(store: Path) -> None:
    v2 = library("torchvision.transforms.v2")
    for transform in (v2.RandomHorizontalFlip(1.0), v2.ColorJitter(0.4), v2.Compose([v2.RandomHorizontalFlip()])):
        with (
            Loader(store, batch_size=4, transform=transform) as loader,
            pytest.raises(ValueError, match=rf"transform {type(transform).__name__} returned its Batch unchanged"),
        ):
            next(iter(loader))
