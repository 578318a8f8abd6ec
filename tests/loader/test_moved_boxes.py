"""Augment moves boxes with their images, bit-identical in every batch."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, CenterCrop, Draws, Normalize, RandomCrop, RandomFlip, RandomResizedCrop, Step
from tests.loader.augmenting import batch_of, draws_of
from tests.stores import make_store, random_images

Boxes = NDArray[np.float32]


def flip_boxes(boxes: Boxes, width: int) -> Boxes:
    return np.stack([width - boxes[..., 2], boxes[..., 1], width - boxes[..., 0], boxes[..., 3]], -1)


def with_columns(images: Tensor, **columns: Tensor) -> Batch:
    return dataclasses.replace(batch_of(images), columns=columns)


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
    batch = with_columns(draw_rectangles(boxes, 20, 30), boxes=torch.from_numpy(boxes[:, None].astype(np.float32)))
    result = Augment(*steps, seed=seed)(batch)
    assert result.columns["boxes"][:, 0].tolist() == extents(result.images)


@given(rectangles(4, 60, 80, 12), seeds)
def test_painted_rectangle_is_resized_with_its_box(boxes: NDArray[np.int64], seed: int) -> None:
    batch = with_columns(draw_rectangles(boxes, 60, 80), boxes=torch.from_numpy(boxes[:, None].astype(np.float32)))
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


def inverted(images: Tensor, draws: Draws) -> Tensor:
    return 255 - images


def test_step_without_move_boxes_is_rejected(boxed_store: tuple[Path, Boxes], store: Path) -> None:
    augment = Augment(RandomFlip(), inverted)
    message = r'"boxes", but the step inverted of Augment does not move boxes; .* move_boxes\(self, boxes, draws'
    with pytest.raises(ValueError, match=message):
        Loader(boxed_store[0], batch_size=2, transform=augment)
    with pytest.raises(ValueError, match=message):
        augment(with_columns(torch.zeros(1, 8, 6, 3), boxes=torch.zeros(1, 1, 4)))
    with Loader(store, batch_size=2, transform=augment) as loader:
        assert "boxes" not in next(iter(loader)).columns


def test_boxes_moved_out_of_the_image_are_clipped(boxed_store: tuple[Path, Boxes]) -> None:
    with Loader(boxed_store[0], batch_size=1, shuffle="none", transform=Augment(Shift())) as loader:
        (boxes, *_) = next(iter(loader)).columns["boxes"].tolist()
    assert boxes == [[5, 2, 6, 6], [4, 0, 6, 3.5], [0, 0, 0, 0]]


@pytest.mark.parametrize("step", [CenterCrop, RandomCrop, RandomResizedCrop])
def test_boxes_use_the_size_of_the_epoch(step: Callable[[Any], Step]) -> None:
    whole = with_columns(torch.zeros(1, 12, 10, 1, dtype=torch.uint8), boxes=torch.tensor([[[0.0, 0.0, 10.0, 12.0]]]))
    for epoch in (0, 2):
        batch = Augment(step(lambda epoch: (4 + epoch, 5)))(dataclasses.replace(whole, epoch=epoch))
        assert batch.columns["boxes"].tolist() == [[[0, 0, 5, 4 + epoch]]]
