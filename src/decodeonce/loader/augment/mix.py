"""Mix the images of a batch with each other, and their labels: MixUp, CutMix, and one of several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.arguments import check_probability, whole
from decodeonce.loader.augment.augment import Draws, Step, same_width
from decodeonce.loader.augment.fused import constant
from decodeonce.loader.augment.rows import fill_rows
from decodeonce.loader.buffers import recycled

_SAMPLES = 2**16


class _Mixing(Step):
    """Base of the steps that mix each image, and its labels, with another image of the batch."""

    num_classes: int

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Mix the images of a batch."""
        return self._mix(images, images, draws, _all(draws))

    def mix_labels(self, labels: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Mix the labels with the shares of their images in the result."""
        if labels.dim() == 1:
            soft = torch.zeros((len(labels), self.num_classes), dtype=torch.float32, device=labels.device)
            soft.scatter_(1, labels[:, None], 1.0)
        else:
            soft = labels.to(torch.float32)
        share = self._kept(draws, height, width, _all(draws))[:, None]
        return soft * share + soft[_partners(draws)] * (1 - share)

    def _mix(self, images: Tensor, others: Tensor, draws: Draws, chosen: Tensor) -> Tensor:
        """Mix the chosen rows of `images` with their partners in `others`."""
        raise NotImplementedError

    def _kept(self, draws: Draws, height: int, width: int, chosen: Tensor) -> Tensor:
        """float32 (B,): the share of the image itself in the result; 1 for rows that are not chosen."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Mix(_Mixing):
    """Base of MixUp and CutMix: parameters and samples."""

    alpha: float
    num_classes: int
    p: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha is {self.alpha!r}, expected a number above 0")
        object.__setattr__(self, "num_classes", whole("num_classes", self.num_classes, 1))
        check_probability(self.p)

    def _draw(self, draws: Draws, chosen: Tensor, table: Tensor, otherwise: int) -> Tensor:
        """(B,): what `table` has for the sample of each image; `otherwise` for images that are not mixed."""
        drawn, place = draws.uniform(2).unbind(1)
        return torch.where(chosen & (drawn < self.p), table[(place * _SAMPLES).to(torch.int64)], otherwise)


class MixUp(_Mix):
    """Mix each image with another image of its batch: kept * image + (1 - kept) * other. Labels become soft.

    ``batch.labels`` becomes float32 (B, num_classes): `kept` for the class of the image, 1 - `kept` for the class of
    the other image. ``torch.nn.functional.cross_entropy`` accepts such labels. Images keep their dtype; uint8 is
    rounded.

    The other image is a random one of the batch, so it depends on batch size and number of ranks. It can be a row of
    padding, which is also an image. An image that is alone in its batch stays unchanged. Boxes cannot be mixed, so the
    Loader of a store with boxes raises ValueError.

    ``MixUp`` followed by ``CutMix`` can mix an image twice. ``OneOf(MixUp(...), CutMix(...))`` mixes it once.

    Args:
        alpha: `kept` is drawn from Beta(alpha, alpha) for each image; above 0. With a small value, `kept` is mostly
            near 0 or 1. With 1, it is uniform.
        num_classes: Width of the soft labels. At least the number of classes of the store.
        p: Probability that an image is mixed. Default: 1.0.

    Raises:
        ValueError: If an argument is not valid.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), Normalize("imagenet"), MixUp(0.2, num_classes=1000), seed=0)
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment)))
        <Batch images float32 (16, 3, 224, 224), labels float32 (16, 1000); 16 of 16 rows valid, epoch 0, on cpu>
    """

    def _mix(self, images: Tensor, others: Tensor, draws: Draws, chosen: Tensor) -> Tensor:
        kept = self._kept(draws, images.shape[1], images.shape[2], chosen)
        return (blend_on_cpu if _by_row(images) else blend_on_device)(images, others, _partners(draws), kept)

    def _kept(self, draws: Draws, height: int, width: int, chosen: Tensor) -> Tensor:
        return self._draw(draws, chosen, _kept_shares(self.alpha, draws.rows.device), 1)


class CutMix(_Mix):
    """Paste a rectangle of another image of the batch into each image. Labels become soft.

    The rectangle has the same position in both images, and the aspect ratio of the images. It is clipped at the edge.
    Each label gets the share of the area that its image has in the result. Everything else is as in ``MixUp``.

    Args:
        alpha: The rectangle's share of the area, before clipping, is drawn from Beta(alpha, alpha); above 0.
        num_classes: Width of the soft labels. At least the number of classes of the store.
        p: Probability that an image is mixed. Default: 1.0.

    Raises:
        ValueError: If an argument is not valid.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), Normalize("imagenet"), CutMix(1.0, num_classes=1000), seed=0)
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).labels.shape
        torch.Size([16, 1000])
    """

    def _rectangles(self, draws: Draws, height: int, width: int, chosen: Tensor) -> Tensor:
        """int64 (B, 4): top, bottom, left and right, computed as in torchvision's CutMix."""
        ends = []
        for size, middle in zip((height, width), draws.uniform(4)[:, 2:].unbind(1), strict=True):
            center = (middle * size).to(torch.int64)
            reach = self._draw(draws, chosen, _reaches(self.alpha, size, middle.device), 0)
            ends += [(center - reach).clamp(min=0), (center + reach).clamp(max=size)]
        return torch.stack(ends, 1)

    def _mix(self, images: Tensor, others: Tensor, draws: Draws, chosen: Tensor) -> Tensor:
        rectangles = self._rectangles(draws, images.shape[1], images.shape[2], chosen)
        return (paste_on_cpu if _by_row(images) else paste_on_device)(images, others, _partners(draws), rectangles)

    def _kept(self, draws: Draws, height: int, width: int, chosen: Tensor) -> Tensor:
        top, bottom, left, right = self._rectangles(draws, height, width, chosen).unbind(1)
        return _shares_left(height * width, top.device)[(bottom - top) * (right - left)]


class OneOf(_Mixing):
    """Mix each image with one of these steps, as timm and torchvision's RandomChoice do for a whole batch.

    The choice of the step for an image depends on seed, epoch and row, like all random numbers of ``Augment``. The
    step's `p` still decides whether it mixes the image.

    Args:
        *steps: ``MixUp`` and ``CutMix``, with the same `num_classes`.
        weights: How often each step is chosen, relative to the others. None (default): equally often.

    Raises:
        ValueError: If an argument is not valid.

    Example:
        >>> mix = OneOf(MixUp(0.8, num_classes=1000), CutMix(1.0, num_classes=1000), weights=(1, 3))
        >>> augment = Augment(RandomResizedCrop(224), Normalize("imagenet"), mix, seed=0)
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).labels.shape
        torch.Size([16, 1000])
    """

    def __init__(self, *steps: MixUp | CutMix, weights: Sequence[float] | None = None) -> None:
        if not steps or not all(isinstance(step, _Mix) for step in steps):
            raise ValueError(f"OneOf has the steps {steps!r}, expected MixUp(...) and CutMix(...)")
        weights = (1,) * len(steps) if weights is None else tuple(weights)
        if len(weights) != len(steps) or not all(0 <= each < math.inf for each in weights) or not any(weights):
            raise ValueError(f"weights is {weights!r}, expected {len(steps)} numbers of 0 or more, not all 0")
        self.num_classes = same_width(steps)
        self._steps, self._weights = steps, weights
        self._ends = tuple(end / sum(weights) for end in accumulate(weights))

    def __repr__(self) -> str:
        return f"OneOf({', '.join(map(repr, self._steps))}, weights={self._weights})"

    def _each(self, draws: Draws, chosen: Tensor) -> Iterator[tuple[_Mix, Tensor]]:
        """Yield each step with the rows that it mixes, bool (B,)."""
        place = draws.uniform(6)[:, 5]
        choice = (place[:, None] >= constant(self._ends[:-1], place.dtype, place.device)).sum(1)
        for number, step in enumerate(self._steps):
            yield step, chosen & (choice == number)

    def _mix(self, images: Tensor, others: Tensor, draws: Draws, chosen: Tensor) -> Tensor:
        for step, rows in self._each(draws, chosen):  # each leaves the rows of the other steps as they are
            images = step._mix(images, others, draws, rows)
        return images

    def _kept(self, draws: Draws, height: int, width: int, chosen: Tensor) -> Tensor:
        kept = [step._kept(draws, height, width, rows) for step, rows in self._each(draws, chosen)]
        return torch.stack(kept).prod(0)


def blend_on_device(images: Tensor, others: Tensor, partners: Tensor, kept: Tensor) -> Tensor:
    """Mix images with their partners (B,) in `others`, with weights kept (B,) and 1 - kept."""
    share = kept[:, None, None, None]
    mixed = images * share
    mixed = torch.addcmul(mixed, others[partners], 1 - share, out=mixed)
    return (mixed if images.dtype.is_floating_point else mixed.add_(0.5)).to(images.dtype)


def blend_on_cpu(images: Tensor, others: Tensor, partners: Tensor, kept: Tensor) -> Tensor:
    """The same on a CPU."""
    result = recycled(images.shape, images.dtype)
    pixels, mixed_in, written = images.flatten(1).numpy(), others.flatten(1).numpy(), result.flatten(1).numpy()
    places, shares = partners.tolist(), kept.tolist()
    rounding = 0 if images.dtype.is_floating_point else 0.5

    def blend(row: int) -> None:
        if shares[row] == 1:
            written[row] = pixels[row]
            return
        mixed = np.multiply(pixels[row], shares[row], dtype=np.float32)
        mixed += np.multiply(mixed_in[places[row]], 1 - shares[row], dtype=np.float32)
        written[row] = np.add(mixed, rounding, out=mixed)

    return fill_rows(result, blend)


def paste_on_device(images: Tensor, others: Tensor, partners: Tensor, rectangles: Tensor) -> Tensor:
    """Paste rectangles (B, 4) of the partners (B,) in `others` into the images."""
    top, bottom, left, right = rectangles[:, :, None].unbind(1)
    row, column = (torch.arange(size, device=images.device) for size in images.shape[1:3])
    rows, columns = (row >= top) & (row < bottom), (column >= left) & (column < right)
    return torch.where(rows[:, :, None, None] & columns[:, None, :, None], others[partners], images)


def paste_on_cpu(images: Tensor, others: Tensor, partners: Tensor, rectangles: Tensor) -> Tensor:
    """The same on a CPU."""
    result = recycled(images.shape, images.dtype)
    pixels, pasted, written = images.numpy(), others.numpy(), result.numpy()
    numbers, places = partners.tolist(), rectangles.tolist()

    def paste(row: int) -> None:
        top, bottom, left, right = places[row]
        written[row] = pixels[row]
        written[row, top:bottom, left:right] = pasted[numbers[row], top:bottom, left:right]

    return fill_rows(result, paste)


def _by_row(images: Tensor) -> bool:
    return images.device.type == "cpu" and images.dtype in (torch.uint8, torch.float32)


def _all(draws: Draws) -> Tensor:
    return torch.ones_like(draws.rows, dtype=torch.bool)


def _partners(draws: Draws) -> Tensor:
    """int64 (B,): for each image, the index of the image to mix it with; its own only if it is alone in the batch.

    This is random and not the row before: rows ascend within a batch, and neighbors in a store often have one class.
    """
    order = draws.uniform(5)[:, 4].argsort(stable=True)
    return torch.empty_like(order).scatter_(0, order, order.roll(1))


# Tables of what is computed in float64, which some devices lack. A device only looks up a number in them.


@cache
def _beta(alpha: float) -> NDArray[np.float64]:
    """Samples of Beta(alpha, alpha), the same on every machine."""
    half = np.random.RandomState(0).beta(alpha, alpha, _SAMPLES // 2)  # unlike Generator, its stream never changes
    return np.concatenate([half, 1 - half])


@cache
def _kept_shares(alpha: float, device: torch.device) -> Tensor:
    """float32: the share that MixUp keeps, by sample."""
    return torch.from_numpy(_beta(alpha).astype(np.float32)).to(device)


@cache
def _reaches(alpha: float, size: int, device: torch.device) -> Tensor:
    """int32: half the side of CutMix's rectangle in pixels, by sample, where images have `size` pixels."""
    return torch.from_numpy((_beta(alpha) ** 0.5 / 2 * size).astype(np.int32)).to(device)


@cache
def _shares_left(size: int, device: torch.device) -> Tensor:
    """float32: the share of an image of `size` pixels that CutMix keeps, by the number of pasted pixels."""
    return torch.from_numpy((1 - np.arange(size + 1) / size).astype(np.float32)).to(device)
