"""Augment: a list of steps as the transform of a Loader. First what a step is, then what steps share.

Boxes are float32 (B, K, 4), left, top, right, bottom in pixels; absent boxes are zeros. Each coordinate is rounded
once, to float32: after a single float32 operation, or after several in float64. So a CPU and a device give the same
bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from decodeonce.loader.arguments import whole
from decodeonce.loader.augment.rows import Rows
from decodeonce.loader.delivery import Batch, name_of
from decodeonce.loader.order import derive_key
from decodeonce.splitmix import FACTOR_1, FACTOR_2, GOLDEN

_BITS = 24  # the precision of float32


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


@runtime_checkable
class RowStep(Step, Protocol):
    """A step that can also work row by row on a CPU, as all steps of this package do that need one row at a time."""

    def on_rows(self, rows: Rows, draws: Draws, /) -> Rows | None:
        """Return `rows` with the work of this step added, which gives the same images as a call of the step.

        The result is None if the step has no work for rows of this dtype.
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

    def check_store(self, columns: Collection[str], classes: int) -> None:
        """Raise ValueError if a step does not support a store with these columns and this number of classes."""
        for step in self._steps:
            if "boxes" in columns:
                _as_box_step(step)
            if (found := getattr(step, "num_classes", classes)) < classes:
                what = f"{type(step).__name__} has num_classes={found}"
                raise ValueError(f"{what}, expected at least the {classes} classes of the store")

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its images, labels and boxes augmented."""
        rows, labels, columns = Rows.of(batch.images), batch.labels, dict(batch.columns)
        for number, step in enumerate(self._steps):
            draws = Draws(derive_key(self._seed, batch.epoch, number), batch.rows, batch.epoch)
            height, width, _ = rows.shape
            rows = _apply(step, rows, draws)
            if isinstance(step, LabelStep):
                labels = step.mix_labels(labels, draws, height, width)
            if "boxes" in columns:
                moved = _as_box_step(step).move_boxes(columns["boxes"], draws, height, width)
                columns["boxes"] = clip_boxes(moved, *rows.shape[:2])
        if {"boxes", "box_labels"} <= columns.keys():
            columns["box_labels"] = columns["box_labels"].masked_fill(~present_boxes(columns["boxes"]), -1)
        images = rows.done().permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, images=images, labels=labels, columns=columns)


def _apply(step: Step, rows: Rows, draws: Draws) -> Rows:
    """Apply a step to the rows of a batch: later, row by row, if it can, or else at once."""
    ours = type(step).__module__.startswith(__package__)  # a subclass of somebody else may have another __call__
    if ours and rows.images.device.type == "cpu" and isinstance(step, RowStep) and (then := step.on_rows(rows, draws)):
        return then
    images = step(rows.done(), draws)
    if not isinstance(images, Tensor):
        problem = f"the step {name_of(step)} returned {type(images).__name__}, expected a Tensor"
        raise TypeError(f"{problem}; for a transform of another library, use PerImage(...) or PerBatch(...)")
    return Rows.of(images)


def _as_box_step(step: Step) -> BoxStep:
    if isinstance(step, BoxStep):
        return step
    problem = (
        "does not move boxes; make it a class with the method move_boxes(self, boxes, draws, height, width); "
        "if the step moves no pixels, the method is: return boxes"
    )
    if isinstance(step, LabelStep):
        problem = "cannot mix boxes; remove the step or use a store without boxes"
    raise ValueError(f'the store has the column "boxes", but the step {name_of(step)} of Augment {problem}')


def mix_words(words: Tensor) -> Tensor:
    """Mix 64-bit words as ``decodeonce.splitmix.mix`` does, on any device.

    Args:
        words: int64, any shape; the bits are those of unsigned words.

    Returns:
        Tensor: int64, the same shape.
    """
    words = (words ^ _shift_right(words, 30)) * _signed(FACTOR_1)
    words = (words ^ _shift_right(words, 27)) * _signed(FACTOR_2)
    return words ^ _shift_right(words, 31)


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers of one step for the rows of a batch.

    The numbers of a row depend only on `key` and the row, not on the batch. ``Augment`` creates the draws and passes
    them to its steps.

    Args:
        key: 64-bit key, derived from seed, epoch and the number of the step.
        rows: int64 (B,), row numbers in the store.
        epoch: Epoch of the batch. Default: 0.
    """

    key: int
    rows: Tensor
    epoch: int = 0

    def uniform(self, count: int) -> Tensor:
        """Return uniform random numbers for each row. Calling it again returns the same numbers.

        Number i of a row consists of the upper bits of ``derive_key(seed, epoch, step, row, i)``.

        Args:
            count: Numbers per row.

        Returns:
            Tensor: float32 (B, count) in [0, 1), multiples of 2**-24, on the device of the batch.
        """
        words = self.seeds() + _signed(GOLDEN)
        words = mix_words(words[:, None] ^ torch.arange(count, device=words.device))
        return _shift_right(words, 64 - _BITS).to(torch.float32) * 2.0**-_BITS

    def seeds(self) -> Tensor:
        """Return a seed for each row, for a random number generator: ``derive_key(seed, epoch, step, row)``.

        Returns:
            Tensor: int64 (B,), all 64 bits random, on the device of the batch.
        """
        return mix_words(self.rows ^ _signed(self.key + GOLDEN))


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; `>>` would repeat the sign bit."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


@cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of `values` on the device. Each constant is copied there only once."""
    # torch.tensor waits for the copy, so any stream can use the constant afterwards.
    return torch.tensor(values, dtype=dtype, device=device)


def map_boxes(boxes: Tensor, x: Callable[[Tensor], Tensor], y: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `x` to the left and right of boxes, and `y` to the top and bottom, each (B, K)."""
    left, top, right, bottom = boxes.unbind(2)
    return torch.stack([x(left), y(top), x(right), y(bottom)], 2)


def clip_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
    """Clip boxes to an image of this size. Boxes outside of the image become zeros."""
    clipped = map_boxes(boxes, lambda x: x.clamp(0, width), lambda y: y.clamp(0, height))
    return clipped.masked_fill(~present_boxes(clipped)[:, :, None], 0)


def present_boxes(boxes: Tensor) -> Tensor:
    """(B, K) bool: which boxes are present, that is, have an area."""
    left, top, right, bottom = boxes.unbind(2)
    return (left < right) & (top < bottom)
