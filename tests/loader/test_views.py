"""Views gives several augmented views of each row, the same after a resume and with any number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce import Loader
from decodeonce.augment import Augment, Draws, MixUp, Normalize, PerImage, RandomFlip, RandomResizedCrop, Views
from tests.conftest import COUNT
from tests.loader.augmenting import batch_of, noise, run_on_device

BATCH = 12


def shuffled(image: Tensor) -> Tensor:
    return image.flatten()[torch.randperm(image.numel())].view(image.shape)


def make_views() -> Views:
    """2 + 8 views, as for DINO: small ones are made with one Augment."""
    large = Augment(RandomResizedCrop(6), RandomFlip(), PerImage(shuffled), Normalize("imagenet"), seed=4)
    small = Augment(RandomResizedCrop(3, scale=(0.05, 0.4)), RandomFlip(), seed=4)
    return Views(large, large, *[small] * 8)


def test_views_have_their_own_draws() -> None:
    images = noise(64)
    batch, augment = batch_of(images), Augment(RandomFlip(), seed=4)
    views = Views(augment, augment, augment, images=True)(batch).views
    flipped = torch.stack([(view != images.permute(0, 3, 1, 2)).flatten(1).any(1) for view in views])
    assert len(set(map(tuple, flipped.tolist()))) == 3
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 15 < (flipped[one] != flipped[other]).sum() < 49
    again = Views(augment, augment)(batch).views
    assert all(map(torch.equal, again, views))
    assert not torch.equal(Views(Augment(RandomFlip(), seed=5))(batch).views[0], views[0])


def test_a_view_equals_its_augment_except_for_the_draws() -> None:
    batch = batch_of(noise(9))
    batch.columns["boxes"] = torch.ones(9, 2, 4)
    result = Views(Augment(RandomFlip(1.0)), Augment(Normalize("imagenet")))(batch)
    mirrored, normalized = result.views
    assert torch.equal(mirrored, Augment(RandomFlip(1.0))(batch).images)
    assert torch.equal(normalized, Augment(Normalize("imagenet"))(batch).images)
    assert normalized.is_contiguous(memory_format=torch.channels_last)
    assert result.labels is batch.labels
    assert result.columns["boxes"] is batch.columns["boxes"]  # where they are in the store's images


def test_images_are_delivered_only_if_asked_for(store: Path, images: NDArray[np.uint8]) -> None:
    with Loader(store, batch_size=BATCH, transform=make_views()) as loader:
        for batch in loader:
            assert batch.images.shape == (0, 8, 6, 3)
            assert [tuple(view.shape) for view in batch.views] == 2 * [(BATCH, 3, 6, 6)] + 8 * [(BATCH, 3, 3, 3)]
        assert loader.stats()["yielded"]["bytes"] == images.nbytes  # each row is read once
    batch = next(iter(Loader(store, batch_size=BATCH, transform=Views(Augment(RandomFlip()), images=True))))
    assert np.array_equal(batch.images, images[batch.rows])


def test_views_move_with_their_batch() -> None:
    batch = run_on_device(Views(Augment(RandomResizedCrop(4), RandomFlip()), Augment(Normalize("imagenet"))))
    assert [view.device.type for view in batch.views] == ["meta"] * 2
    assert [view.shape for view in batch.views] == [(9, 3, 4, 4), (9, 3, 8, 6)]
    on_host = make_views()(batch_of(noise(9)))
    assert {tensor.device.type for tensor in on_host.to("meta").tensors()} == {"meta"}
    assert len(on_host.to("meta").views) == 10
    assert len(on_host.tensors()) == 13


def test_padding_and_epochs_draw_as_without_views(store: Path) -> None:
    seen: list[int] = []

    def keep(images: Tensor, draws: Draws) -> Tensor:
        seen.append(draws.epoch)
        return images

    with Loader(store, batch_size=COUNT - 1, tail="pad", transform=Views(Augment(keep), Augment())) as loader:
        assert [len(batch.views[1]) for batch in (*loader, *loader)] == [COUNT - 1] * 4
    assert seen == [0, 0, 1, 1]


def test_wrong_views_are_rejected() -> None:
    wrong: list[tuple[Any, str]] = [
        ((), "expected an Augment"),
        ((RandomFlip(),), r"the views are \(RandomFlip\(p=0.5\),\), expected an Augment"),
        ((Augment(RandomFlip(), paired={"mask": "nearest"}),), "a view has the paired map 'mask'"),
        ((Augment(), Augment(MixUp(1.0, 3))), "MixUp mixes labels, and the views of an image share"),
    ]
    for views, message in wrong:
        with pytest.raises(ValueError, match=message):
            Views(*views)
