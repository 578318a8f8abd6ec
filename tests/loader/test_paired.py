"""Maps of the size of the images, such as masks, move with their images: Augment(..., paired={"mask": "nearest"})."""

import dataclasses
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from decodeonce import Batch, Loader, StoreDataset, open_store
from decodeonce.augment import (
    Augment,
    CenterCrop,
    ColorJitter,
    Draws,
    MixUp,
    Normalize,
    PerBatch,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Step,
)
from decodeonce.errors import StoreError
from decodeonce.loader.order import derive_key
from tests.libraries import library
from tests.loader.augmenting import batch_of
from tests.stores import make_store, random_images

COUNT, HEIGHT, WIDTH = 40, 24, 18
MOVES: list[Step] = [RandomFlip(), CenterCrop(11), RandomCrop((9, 14))]
NONE_MOVE: list[Step] = [Normalize("imagenet"), ColorJitter(0.4), RandomErasing(1.0)]


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
    images, step = noise(), RandomResizedCrop((13, 20))
    mask = images[..., 0]
    augment = Augment(step, seed=4, paired={"mask": "nearest", "soft": "bilinear"})
    found = augment(batch_with(images, mask=mask, soft=mask)).columns
    windows = step.windows(Draws(derive_key(4, 0, 0), torch.arange(COUNT)), HEIGHT, WIDTH).long().tolist()

    def expected(kind: Any, antialias: bool) -> Tensor:
        pairs = zip(mask[:, None], windows, strict=True)
        return torch.cat([functional.resized_crop(one, *window, [13, 20], kind, antialias) for one, window in pairs])

    assert torch.equal(found["mask"], expected(interpolation.NEAREST_EXACT, antialias=False))
    assert (found["soft"].int() - expected(interpolation.BILINEAR, antialias=True).int()).abs().max() <= 1


def keep(images: Tensor, draws: Draws) -> Tensor:
    return images


def test_errors_name_the_problem() -> None:
    maps: Any = {"mask": "nearest"}
    wrong: list[tuple[str, tuple[Step, ...], Any]] = [
        (r"the step keep does not move maps; .* move_maps\(self, maps, draws, resamp", (RandomFlip(), keep), maps),
        (r"expected 'mask' to be one of \('nearest', 'bilinear'\)", (), {"mask": "cubic"}),
        (r"paired is \['mask'\], expected how to resize each map, such as \{", (), ["mask"]),
    ]
    for message, steps, paired in wrong:
        with pytest.raises(ValueError, match=message):
            Augment(*steps, paired=paired)
    with pytest.raises(ValueError, match=r"'mask', but this column is \(40, 3\), expected \(B, H, W\) or"):
        Augment(RandomFlip(), paired=maps)(batch_with(noise(), mask=torch.zeros(COUNT, 3)))


# ---- masks that are stored with their images, by `prep build --paired`


IMAGES = random_images(COUNT, shape=(HEIGHT, WIDTH, 3))
TARGETS = random_images(COUNT, shape=(HEIGHT, WIDTH, 3), seed=1)
MASKS = np.ascontiguousarray(random_images(COUNT, shape=(HEIGHT, WIDTH, 3), seed=2)[..., 0])


@pytest.fixture(scope="module")
def paired_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paired = {"mask": MASKS, "target": TARGETS}
    return make_store(tmp_path_factory.mktemp("paired") / "s", IMAGES, shard_rows=13, paired=paired)


def test_arrays_of_a_store_are_indexed_like_images(paired_store: Path) -> None:
    store = pickle.loads(pickle.dumps(open_store(paired_store)))
    assert repr(store).endswith(f"{COUNT} x {HEIGHT}x{WIDTH}x3 uint8 with mask with target, 3 classes>")
    mask = np.arange(COUNT) % 3 == 1
    for found, wanted in ((store.images, IMAGES), (store.paired["mask"], MASKS), (store.paired["target"], TARGETS)):
        assert (found.shape, len(found), found.dtype) == (wanted.shape, COUNT, np.uint8)
        for index in (0, -1, slice(None), slice(2, 9), slice(30, 3, -4), [7, 30, 7], mask, (slice(1, 20), 4), ...):
            np.testing.assert_array_equal(found[index], wanted[index])
        out = np.empty((3, *wanted.shape[1:]), np.uint8)
        np.testing.assert_array_equal(found.take([39, 0, 12], out=out), wanted[[39, 0, 12]])
    assert np.shares_memory(store.images[3], store.images[3])
    assert not store.images[3].flags.writeable
    assert store.images[3].flags.c_contiguous


@pytest.mark.parametrize("reader", ["pread", "mmap"])
@pytest.mark.parametrize("cache", [None, "device"])
def test_batch_has_masks_of_its_images_in_the_same_memory(paired_store: Path, reader: Any, cache: Any) -> None:
    with Loader(paired_store, batch_size=8, reader=reader, cache=cache, verify=True) as loader:
        for batch in [batch for _ in range(2) for batch in loader]:
            rows = batch.rows.numpy()
            np.testing.assert_array_equal(batch.images, IMAGES[rows])
            np.testing.assert_array_equal(batch["mask"], MASKS[rows])
            np.testing.assert_array_equal(batch.columns["target"], TARGETS[rows])
            storages = {tensor.untyped_storage().data_ptr() for tensor in (batch.images, *batch.columns.values())}
            assert len(storages) == 1
            assert batch.images[0].is_contiguous()


def test_memory_of_a_kept_mask_is_not_reused(paired_store: Path) -> None:
    with Loader(paired_store, batch_size=8, prefetch=1) as loader:
        kept = [(batch.rows, batch["mask"]) for _ in range(3) for batch in loader]
    for rows, mask in kept:
        np.testing.assert_array_equal(mask, MASKS[rows.numpy()])


@pytest.mark.parametrize("size", [(13, 20), (24, 18)])
def test_stored_masks_move_like_columns(paired_store: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    columns = {"mask": MASKS, "target": TARGETS}
    with_columns = make_store(tmp_path / "columns", IMAGES, shard_rows=13, columns=columns)
    steps: list[Step] = [RandomResizedCrop(size), RandomFlip(), ColorJitter(0.4), Normalize("imagenet")]
    augment = Augment(*steps, seed=3, paired={"mask": "nearest", "target": "bilinear"})
    loaders = [Loader(store, batch_size=8, transform=augment) for store in (paired_store, with_columns)]
    for found, wanted in zip(*loaders, strict=True):
        assert found.columns.keys() == wanted.columns.keys()
        for name, tensor in found.as_dict().items():
            assert torch.equal(tensor, wanted[name]), name
        assert found.images.is_contiguous(memory_format=torch.channels_last)


def test_store_dataset_gives_masks(paired_store: Path) -> None:
    image, label, mask, target = StoreDataset(paired_store, columns=["mask", "target"])[17]
    assert label == 17 % 3
    for found, wanted in ((image, IMAGES), (mask, MASKS), (target, TARGETS)):
        np.testing.assert_array_equal(found, wanted[17])
    with pytest.raises(StoreError, match="no column 'depth', expected one of its columns: mask, target"):
        StoreDataset(paired_store, columns=["depth"])


def test_steps_that_leave_stored_masks_behind_are_refused(paired_store: Path) -> None:
    forgotten = r"the step RandomFlip of Augment moves the images, but not 'mask', which the store holds with them; "
    problems: dict[str, tuple[Step, ...]] = {
        forgotten + r'pass paired=\{"mask": "nearest"\}, or "bilinear"': (RandomFlip(),),
        "the step MixUp cannot mix maps; remove the step or use a store without masks": (RandomFlip(), MixUp(1.0, 3)),
        "the step PerBatch.* does not move maps; make it a class with the method move_maps": (PerBatch(torch.neg),),
    }
    for problem, steps in problems.items():
        with pytest.raises(ValueError, match=problem):
            Loader(paired_store, batch_size=4, transform=Augment(Normalize("imagenet"), *steps))
    with pytest.raises(ValueError, match="but not 'target'"):
        Loader(paired_store, batch_size=4, transform=Augment(RandomFlip(), paired={"mask": "nearest"}))
    with pytest.raises(ValueError, match="paired has 'depth', which is not a column of the store; its columns: mask"):
        Loader(paired_store, batch_size=4, transform=Augment(paired={"depth": "nearest"}))


@pytest.mark.parametrize("steps", [(), NONE_MOVE[1:]])
def test_stored_masks_need_not_be_named_if_no_pixel_moves(paired_store: Path, steps: Iterable[Step]) -> None:
    with Loader(paired_store, batch_size=8, transform=Augment(*steps)) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["mask"], MASKS[batch.rows.numpy()])
