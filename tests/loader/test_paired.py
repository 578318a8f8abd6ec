"""Maps of the size of the images, such as masks, and boxes move with their images."""

import dataclasses
import json
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from decodeonce import Batch, Loader, StoreDataset, StoreError, open_store
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
from decodeonce.loader.order import derive_key
from tests.libraries import library
from tests.loader.augmenting import batch_of, draws_of
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
    wrong: list[tuple[str, tuple[Any, ...], Any]] = [
        ("keep of Augment does not move maps; give its class the method move_maps", (RandomFlip(), keep), maps),
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
        forgotten + r'pass paired=\{"mask": "nearest", "target": "nearest"\}, or "bilinear"': (RandomFlip(),),
        "MixUp of Augment does not move maps; remove it, or use a store without": (RandomFlip(), MixUp(1.0, 3)),
        "the step PerBatch.* does not move maps; give its class the method move_maps": (PerBatch(torch.neg),),
    }
    for problem, steps in problems.items():
        with pytest.raises(ValueError, match=problem):
            Loader(paired_store, batch_size=4, transform=Augment(Normalize("imagenet"), *steps))
    lacking = Augment(RandomFlip(), paired={"target": "bilinear"})
    with pytest.raises(ValueError, match="but not 'mask'") as error:
        Loader(paired_store, batch_size=4, transform=lacking)
    advised = json.loads(str(error.value).partition("pass paired=")[2].partition("}")[0] + "}")
    assert advised == {"mask": "nearest", "target": "bilinear"}
    Loader(paired_store, batch_size=4, transform=Augment(RandomFlip(), paired=advised))
    with pytest.raises(ValueError, match="paired has 'depth', which is not a column of the store; its columns: mask"):
        Loader(paired_store, batch_size=4, transform=Augment(paired={"depth": "nearest"}))


@pytest.mark.parametrize("steps", [(), NONE_MOVE[1:]])
def test_stored_masks_need_not_be_named_if_no_pixel_moves(paired_store: Path, steps: Iterable[Step]) -> None:
    with Loader(paired_store, batch_size=8, transform=Augment(*steps)) as loader:
        for batch in loader:
            np.testing.assert_array_equal(batch["mask"], MASKS[batch.rows.numpy()])


# ---- Boxes move with their images, bit-identical in every batch

Boxes = NDArray[np.float32]


def flip_boxes(boxes: Boxes, width: int) -> Boxes:
    return np.stack([width - boxes[..., 2], boxes[..., 1], width - boxes[..., 0], boxes[..., 3]], -1)


# Numbers


seeds = st.integers(0, 2**40)


@given(st.lists(st.floats(0, 300, width=32), min_size=4, max_size=4), seeds)
def test_coordinates_are_rounded_as_in_ieee_754(corners: list[float], seed: int) -> None:
    x, y = sorted(corners[:2]), sorted(corners[2:])
    box = np.array([[[x[0], y[0], x[1], y[1]]]], np.float32)
    step, draws = RandomResizedCrop((224, 160)), draws_of(1, seed)
    top, left, height, width = step.windows(draws, 300, 300).numpy()[0]
    resized = (box.astype(np.float64) - [left, top, left, top]) * [160, 224, 160, 224] / [width, height, width, height]
    assert np.array_equal(step.move_boxes(torch.from_numpy(box), draws, 300, 300).numpy(), resized.astype(np.float32))
    flipped = RandomFlip(1.0).move_boxes(torch.from_numpy(box), draws, 300, 300).numpy()
    assert np.array_equal(flipped, flip_boxes(box, 300))


# Pixels


def draw_rectangles(boxes: NDArray[Any], height: int, width: int) -> Tensor:
    images = torch.zeros(len(boxes), height, width, 1, dtype=torch.uint8)
    for image, (left, top, right, bottom) in zip(images, boxes.tolist(), strict=True):
        image[top:bottom, left:right] = 255
    return images


def extents(images: Tensor) -> list[list[int]]:
    """left, top, right, bottom of the pixels above 127 in each image (C, H, W); zeros if there are none."""
    found = []
    for image in images[:, 0] > 127:
        rows, columns = image.any(1).nonzero(), image.any(0).nonzero()
        found.append([int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1] if len(rows) else [0] * 4)
    return found


@st.composite
def rectangles(draw: st.DrawFn, count: int, height: int, width: int, least: int) -> NDArray[np.int64]:
    boxes = []
    for _ in range(count):
        left, top = draw(st.integers(0, width - least)), draw(st.integers(0, height - least))
        right, bottom = draw(st.integers(left + least, width)), draw(st.integers(top + least, height))
        boxes.append([left, top, right, bottom])
    return np.array(boxes)


@given(rectangles(4, 20, 30, 1), seeds, st.integers(0, 2))
def test_painted_rectangle_is_at_its_box(boxes: NDArray[np.int64], seed: int, place: int) -> None:
    steps: list[Step] = [RandomCrop((13, 17)), CenterCrop((10, 12))]
    steps.insert(place, RandomFlip())
    batch = batch_with(draw_rectangles(boxes, 20, 30), boxes=torch.from_numpy(boxes[:, None].astype(np.float32)))
    result = Augment(*steps, seed=seed)(batch)
    assert result.columns["boxes"][:, 0].tolist() == extents(result.images)


@given(rectangles(4, 60, 80, 12), seeds)
def test_painted_rectangle_is_resized_with_its_box(boxes: NDArray[np.int64], seed: int) -> None:
    batch = batch_with(draw_rectangles(boxes, 60, 80), boxes=torch.from_numpy(boxes[:, None].astype(np.float32)))
    result = Augment(RandomResizedCrop((70, 50), scale=(0.3, 1.0)), RandomFlip(), seed=seed)(batch)
    for box, image, extent in zip(result.columns["boxes"][:, 0], result.images, extents(result.images), strict=True):
        assert bool(image.any()) == bool(box.any())
        if min(box[2] - box[0], box[3] - box[1]) >= 4:  # thinner rectangles can be darker than 128
            assert np.abs(box.numpy() - extent).max() <= 1


# With a Loader


@pytest.fixture
def boxed_store(tmp_path: Path) -> tuple[Path, Boxes]:
    boxes = np.zeros((10, 3, 4), np.float32)
    boxes[:, :2] = np.array([[1, 2, 4, 6], [0, 0, 3, 3.5]])
    boxes[:, 0, 0] += np.arange(10, dtype=np.float32) / 10
    labels = np.where(boxes.any(2), [3, 1, 2], -1)
    columns: dict[str, NDArray[Any]] = {"boxes": boxes, "box_count": np.full(10, 2, np.int32), "box_labels": labels}
    return make_store(tmp_path / "s", random_images(10), columns=columns), boxes


def test_loader_yields_boxes_of_flipped_images(boxed_store: tuple[Path, Boxes]) -> None:
    store, boxes = boxed_store
    flipped = np.where(boxes.any(2, keepdims=True), flip_boxes(boxes, 6), np.float32(0))
    with Loader(store, batch_size=5, transform=Augment(RandomFlip(1.0), Normalize(store))) as loader:
        for batch in loader:
            assert np.array_equal(batch.columns["boxes"].numpy(), flipped[batch.rows])
            assert batch.columns["box_labels"].tolist() == [[3, 1, -1]] * 5


def test_box_outside_the_crop_becomes_zeros_at_its_index(boxed_store: tuple[Path, Boxes]) -> None:
    transform = Augment(RandomFlip(1.0), CenterCrop((8, 2)), CenterCrop(1))
    with Loader(boxed_store[0], batch_size=10, transform=transform) as loader:
        (batch,) = loader
    assert batch.columns["boxes"].tolist() == [[[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]] * 10
    assert batch.columns["box_labels"].tolist() == [[3, -1, -1]] * 10
    assert batch.columns["box_count"].tolist() == [2] * 10


def test_boxes_are_bit_identical_at_any_batch_size(boxed_store: tuple[Path, Boxes]) -> None:
    augment = Augment(RandomResizedCrop((11, 7)), RandomFlip(), RandomCrop(6), seed=3)
    seen: list[dict[int, list[Any]]] = [{}, {}]
    for found, batch_size in zip(seen, (10, 3), strict=True):
        for batch in Loader(boxed_store[0], batch_size=batch_size, tail="keep", transform=augment):
            found.update(zip(batch.rows.tolist(), batch.columns["boxes"].tolist(), strict=True))
    assert seen[0] == seen[1]
    assert len({str(boxes) for boxes in seen[0].values()}) > 1


# Custom steps


class Shift:
    """A step that moves pixels to the right, out of the image."""

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        return images.roll(4, 2)

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        assert (height, width) == (8, 6)
        return boxes + torch.tensor([4, 0, 4, 0])


class Keep(Step):
    """A step without a method that moves boxes or maps."""

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        return images


class StillKeep(Keep):
    moves_pixels = False


@pytest.mark.parametrize("step", [keep, Keep()])
def test_step_without_move_boxes_is_rejected(boxed_store: tuple[Path, Boxes], store: Path, step: Any) -> None:
    augment = Augment(RandomFlip(), step)
    message = "the images have boxes, but the step [kK]eep of Augment does not move boxes; give its class the method"
    with pytest.raises(ValueError, match=message):
        Loader(boxed_store[0], batch_size=2, transform=augment)
    with pytest.raises(ValueError, match=message):
        augment(batch_with(torch.zeros(1, 8, 6, 3), boxes=torch.zeros(1, 1, 4)))
    with Loader(store, batch_size=2, transform=augment) as loader:
        assert "boxes" not in next(iter(loader)).columns


def test_boxes_and_masks_stay_if_a_step_says_that_no_pixel_moves(
    boxed_store: tuple[Path, Boxes], paired_store: Path
) -> None:
    with Loader(boxed_store[0], batch_size=10, shuffle="none", transform=Augment(StillKeep())) as loader:
        assert torch.equal(next(iter(loader))["boxes"], torch.from_numpy(boxed_store[1]))
    for augment in (Augment(StillKeep()), Augment(StillKeep(), paired={"mask": "nearest"})):
        with Loader(paired_store, batch_size=COUNT, shuffle="none", transform=augment) as loader:
            np.testing.assert_array_equal(next(iter(loader))["mask"], MASKS)
    with pytest.raises(ValueError, match="the step Keep of Augment does not move maps"):
        Loader(paired_store, batch_size=4, transform=Augment(Keep()))


def test_boxes_moved_out_of_the_image_are_clipped(boxed_store: tuple[Path, Boxes]) -> None:
    with Loader(boxed_store[0], batch_size=1, shuffle="none", transform=Augment(Shift())) as loader:
        (boxes, *_) = next(iter(loader)).columns["boxes"].tolist()
    assert boxes == [[5, 2, 6, 6], [4, 0, 6, 3.5], [0, 0, 0, 0]]


@pytest.mark.parametrize("step", [CenterCrop, RandomCrop, RandomResizedCrop])
def test_boxes_use_the_size_of_the_epoch(step: Callable[[Any], Step]) -> None:
    whole = batch_with(torch.zeros(1, 12, 10, 1, dtype=torch.uint8), boxes=torch.tensor([[[0.0, 0.0, 10.0, 12.0]]]))
    for epoch in (0, 2):
        batch = Augment(step(lambda epoch: (4 + epoch, 5)))(dataclasses.replace(whole, epoch=epoch))
        assert batch.columns["boxes"].tolist() == [[[0, 0, 5, 4 + epoch]]]
