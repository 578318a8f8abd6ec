"""A list of steps as the transform of a Loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from decodeonce.loader.augment.boxes import clip_boxes, present_boxes
from decodeonce.loader.augment.draws import Draws
from decodeonce.loader.batch import Batch
from decodeonce.loader.order import derive_key
from decodeonce.loader.settings import check_whole


class Step(Protocol):
    """One augmentation; any callable like it is one."""

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        """The new pictures (B, H, W, C) of these (B, H, W, C), which are not written to."""


@runtime_checkable
class BoxStep(Step, Protocol):
    """A step that also knows where boxes are after it. Stores with boxes take no other."""

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Return where `boxes` are in the images that the step makes with the same `draws`.

        `Augment` clips the result to the new images, so that it may lie outside of them.

        Args:
            boxes: float32 (B, K, 4): left, top, right, bottom in pixels. Absent ones are zeros, and have to stay
                without an area. Not to be written to.
            draws: Those that the step was called with.
            height: Of the images before the step.
            width: Of the images before the step.
        """


@runtime_checkable
class LabelStep(Step, Protocol):
    """A step that also changes the labels, such as MixUp."""

    def mix_labels(self, labels: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Return the labels of the images that the step makes with the same `draws`.

        Args:
            labels: int64 (B,), or float32 (B, classes) if a step before has mixed them. Not to be written to.
            draws: Those that the step was called with.
            height: Of the images before the step.
            width: Of the images before the step.
        """


class Augment:
    """A transform for a Loader: the steps in turn, on images (B, H, W, C), each with random numbers of its own.

    The batch it returns has images (B, C, H, W) in the channels_last memory format, as convolutional networks take
    them, of the last step's dtype. seed: any whole number. What happens to a row follows from seed, epoch, row and the
    steps up to that point. On a CPU uint8 images are the same bits in any batch; on other devices batch, rank and world
    size may change the last bits of what RandomResizedCrop computes, and with them, rarely, a level by one.

    The column "boxes" moves with the images: float32 pixels, which after a resize are fractions of pixels. Boxes are
    clipped to the image. A box with nothing left in it becomes zeros, in its place, and its entry in "box_labels" -1;
    "box_count" stays. Coordinates are the same bits on every device. Each step has to be a ``BoxStep`` then.
    """

    def __init__(self, *steps: Step, seed: int = 0) -> None:
        for step in steps:
            if isinstance(step, type) or not callable(step):
                raise ValueError(f"a step is {step!r}, expected one like RandomFlip()")
        check_whole(None, seed=seed)
        self._steps = steps
        self._seed = seed

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise ValueError if batches with these columns need a method that a step lacks."""
        if "boxes" in names:
            for step in self._steps:
                _with_boxes(step)

    def check_classes(self, count: int) -> None:
        """Raise ValueError if a step has labels of fewer classes."""
        for step in self._steps:
            found = getattr(step, "num_classes", count)
            if found < count:
                name = type(step).__name__
                raise ValueError(f"{name} has num_classes={found}, expected {count} or more, as many as the store has")

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its pictures augmented."""
        images, labels, columns = batch.images, batch.labels, dict(batch.columns)
        for number, step in enumerate(self._steps):
            draws = Draws(derive_key(self._seed, batch.epoch, number), batch.rows, batch.epoch)
            (height, width), images = images.shape[1:3], step(images, draws)
            if isinstance(step, LabelStep):
                labels = step.mix_labels(labels, draws, height, width)
            if "boxes" in columns:
                moved = _with_boxes(step).move_boxes(columns["boxes"], draws, height, width)
                columns["boxes"] = clip_boxes(moved, images.shape[1], images.shape[2])
        if {"boxes", "box_labels"} <= columns.keys():
            columns["box_labels"] = columns["box_labels"].masked_fill(~present_boxes(columns["boxes"]), -1)
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, images=images, labels=labels, columns=columns)


def _with_boxes(step: Step) -> BoxStep:
    if isinstance(step, BoxStep):
        return step
    name = getattr(step, "__name__", type(step).__name__)
    if isinstance(step, LabelStep):
        raise ValueError(
            f'the store has the column "boxes", and the step {name} of Augment mixes images, but no boxes. '
            "Use it with a store without boxes"
        )
    raise ValueError(
        f'the store has the column "boxes", and the step {name} of Augment does not say where boxes are after it. '
        "Make it a class with the method move_boxes(self, boxes, draws, height, width); "
        "if it moves no pixels, the method is: return boxes"
    )
