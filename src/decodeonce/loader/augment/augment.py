"""Augment: a list of steps as the transform of a Loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from decodeonce.loader.arguments import whole
from decodeonce.loader.augment.boxes import clip_boxes, present_boxes
from decodeonce.loader.augment.draws import Draws
from decodeonce.loader.batch import Batch
from decodeonce.loader.order import derive_key


class Step(Protocol):
    """One step of ``Augment``: any callable with this signature.

    Example:
        >>> class RandomInvert:
        ...     def __call__(self, images, draws):
        ...         chosen = draws.uniform(1)[:, :, None, None] < 0.1
        ...         return torch.where(chosen, 255 - images, images)
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Return the augmented images.

        Args:
            images: (B, H, W, C), on the device: uint8, or the dtype that an earlier step returned. Do not write to it.
            draws: Random numbers of this step for each row of the batch.

        Returns:
            Tensor: (B, H', W', C), any dtype.
        """


@runtime_checkable
class BoxStep(Step, Protocol):
    """A step that also moves boxes. If a store has boxes, every step of ``Augment`` must be a BoxStep."""

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Return the positions of `boxes` in the images that the step returns for the same `draws`.

        They can be outside of the image: ``Augment`` clips them.

        Args:
            boxes: float32 (B, K, 4): left, top, right, bottom in pixels. Absent boxes are zeros, and must still have no
                area after the step. Do not write to it.
            draws: The same as in the call of the step.
            height: Height of the images before the step, in pixels.
            width: Width of the images before the step, in pixels.

        Returns:
            Tensor: float32 (B, K, 4), in pixels of the images after the step.
        """


@runtime_checkable
class LabelStep(Step, Protocol):
    """A step that also changes labels, such as ``MixUp``."""

    def mix_labels(self, labels: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Return the labels of the images that the step returns for the same `draws`.

        Args:
            labels: int64 (B,), or float32 (B, classes) if an earlier step mixed them. Do not write to it.
            draws: The same as in the call of the step.
            height: Height of the images before the step, in pixels.
            width: Width of the images before the step, in pixels.

        Returns:
            Tensor: float32 (B, classes).
        """


class Augment:
    """Apply augmentation steps in order; pass it to a Loader as `transform`.

    Called with a ``Batch``, it returns a new ``Batch`` whose images are (B, C, H, W) in channels_last memory format,
    with the dtype of the last step. The images of the given batch are not changed.

    Augmentation is reproducible: it depends only on seed, epoch, row and the steps, not on batch size or rank. On a
    CPU, uint8 images are bit-identical in any batch. On other devices, the batch can change the last bits of what
    ``RandomResizedCrop`` computes and so, rarely, a pixel value by one level. ``MixUp`` and ``CutMix`` choose the other
    image from the batch.

    If the store has the column "boxes", the boxes move with the images: float32, in pixels, fractional after a resize,
    bit-identical on every device. They are clipped to the image. A box outside of the image becomes zeros at its
    index, and its entry in "box_labels" becomes -1; "box_count" keeps its value.

    Args:
        *steps: Steps from this package, or callables ``(images, draws) -> images`` (see ``Step``). For a store with
            boxes, every step must be a ``BoxStep``. Without steps, images are only permuted.
        seed: Any whole number. Default: 0.

    Raises:
        ValueError: If a step is not callable or is a class. The Loader raises ValueError if the store has boxes that a
            step does not move, or more classes than ``MixUp`` or ``CutMix``.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), RandomFlip(), Normalize("train.store"), seed=0)
        >>> loader = Loader("train.store", batch_size=256, device="cuda", transform=augment)
    """

    def __init__(self, *steps: Step, seed: int = 0) -> None:
        for step in steps:
            if isinstance(step, type) or not callable(step):
                raise ValueError(f"a step is {step!r}, expected a callable object such as RandomFlip()")
        self._steps = steps
        self._seed = whole("seed", seed)

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise ValueError if a step does not support batches with the columns `names`."""
        if "boxes" in names:
            for step in self._steps:
                _as_box_step(step)

    def check_classes(self, count: int) -> None:
        """Raise ValueError if a step has fewer than `count` classes."""
        for step in self._steps:
            found = getattr(step, "num_classes", count)
            if found < count:
                name = type(step).__name__
                raise ValueError(f"{name} has num_classes={found}, expected at least the {count} classes of the store")

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its images, labels and boxes augmented."""
        images, labels, columns = batch.images, batch.labels, dict(batch.columns)
        for number, step in enumerate(self._steps):
            draws = Draws(derive_key(self._seed, batch.epoch, number), batch.rows, batch.epoch)
            (height, width), images = images.shape[1:3], step(images, draws)
            if isinstance(step, LabelStep):
                labels = step.mix_labels(labels, draws, height, width)
            if "boxes" in columns:
                moved = _as_box_step(step).move_boxes(columns["boxes"], draws, height, width)
                columns["boxes"] = clip_boxes(moved, images.shape[1], images.shape[2])
        if {"boxes", "box_labels"} <= columns.keys():
            columns["box_labels"] = columns["box_labels"].masked_fill(~present_boxes(columns["boxes"]), -1)
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, images=images, labels=labels, columns=columns)


def _as_box_step(step: Step) -> BoxStep:
    if isinstance(step, BoxStep):
        return step
    name = getattr(step, "__name__", type(step).__name__)
    if isinstance(step, LabelStep):
        raise ValueError(
            f'the store has the column "boxes", but the step {name} of Augment cannot mix boxes; '
            "remove the step or use a store without boxes"
        )
    raise ValueError(
        f'the store has the column "boxes", but the step {name} of Augment does not move boxes; '
        "make it a class with the method move_boxes(self, boxes, draws, height, width); "
        "if the step moves no pixels, the method is: return boxes"
    )
