"""Mix the images of a batch with each other, and their labels: MixUp and CutMix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from decodeonce.loader.arguments import whole
from decodeonce.loader.augment.augment import Draws
from decodeonce.loader.augment.rows import fill_rows
from decodeonce.loader.buffers import recycled

_SAMPLES = 2**16


@dataclass(frozen=True)
class _Mix:
    """Base of MixUp and CutMix: parameters, partners and labels."""

    alpha: float
    num_classes: int
    p: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha is {self.alpha!r}, expected a number above 0")
        object.__setattr__(self, "num_classes", whole("num_classes", self.num_classes, 1))
        if not 0 <= self.p <= 1:
            raise ValueError(f"p is {self.p!r}, expected a probability, 0 to 1")

    def _draw(self, draws: Draws, power: float, otherwise: float) -> Tensor:
        """float64 (B,): samples of Beta(alpha, alpha), raised to `power`; `otherwise` for images that are not mixed."""
        chosen, place = draws.uniform(2).unbind(1)
        table = _beta(self.alpha, power, chosen.device)
        return torch.where(chosen < self.p, table[(place * _SAMPLES).to(torch.int64)], otherwise)

    def _mix_labels(self, labels: Tensor, draws: Draws, kept: Tensor) -> Tensor:
        if labels.dim() == 1:
            soft = torch.zeros((len(labels), self.num_classes), dtype=torch.float32, device=labels.device)
            soft.scatter_(1, labels[:, None], 1.0)
        elif labels.shape[1] == self.num_classes:
            soft = labels
        else:
            raise ValueError(f"labels have {labels.shape[1]} classes, expected num_classes={self.num_classes}")
        share = kept.to(torch.float32)[:, None]
        return soft * share + soft[_partners(draws)] * (1 - share)


class MixUp(_Mix):
    """Mix each image with another image of its batch: kept * image + (1 - kept) * other. Labels become soft.

    ``batch.labels`` becomes float32 (B, num_classes): `kept` for the class of the image, 1 - `kept` for the class of
    the other image. ``torch.nn.functional.cross_entropy`` accepts such labels. Images keep their dtype; uint8 is
    rounded.

    The other image is a random one of the batch, so it depends on batch size and number of ranks. It can be a row of
    padding, which is also an image. An image that is alone in its batch stays unchanged. Boxes cannot be mixed: the
    Loader of a store with boxes raises ValueError.

    Args:
        alpha: `kept` is drawn from Beta(alpha, alpha) for each image; above 0. Small values: mostly near 0 or 1. 1:
            uniform.
        num_classes: Width of the soft labels. At least the number of classes of the store.
        p: Probability that an image is mixed. Default: 1.0. With both ``MixUp`` and ``CutMix``, each decides
            independently.

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if labels are soft with a different width.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), Normalize("imagenet"), MixUp(0.2, num_classes=1000), seed=0)
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        kept = self._draw(draws, 1, 1).to(torch.float32)
        return (blend_on_cpu if _by_row(images) else blend_on_device)(images, _partners(draws), kept)

    def mix_labels(self, labels: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Mix the labels like the images (see ``LabelStep``)."""
        return self._mix_labels(labels, draws, self._draw(draws, 1, 1))


class CutMix(_Mix):
    """Paste a rectangle of another image of the batch into each image. Labels become soft.

    The rectangle has the same position in both images and their aspect ratio, and is clipped at the edge. Each label
    gets the share of the area that its image has in the result. Everything else is as in ``MixUp``.

    Args:
        alpha: The rectangle's share of the area, before clipping, is drawn from Beta(alpha, alpha); above 0.
        num_classes: Width of the soft labels. At least the number of classes of the store.
        p: Probability that an image is mixed. Default: 1.0. With both ``MixUp`` and ``CutMix``, each decides
            independently.

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if labels are soft with a different width.
    """

    def _rectangles(self, draws: Draws, height: int, width: int) -> Tensor:
        """int64 (B, 4): top, bottom, left and right, computed as in torchvision's CutMix."""
        half = self._draw(draws, 0.5, 0) / 2
        ends = []
        for size, middle in zip((height, width), draws.uniform(4)[:, 2:].unbind(1), strict=True):
            centre, reach = (middle * size).to(torch.int64), (half * size).to(torch.int64)
            ends += [(centre - reach).clamp(min=0), (centre + reach).clamp(max=size)]
        return torch.stack(ends, 1)

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        rectangles = self._rectangles(draws, *images.shape[1:3])
        return (paste_on_cpu if _by_row(images) else paste_on_device)(images, _partners(draws), rectangles)

    def mix_labels(self, labels: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Mix the labels by the area of each image in the result (see ``LabelStep``)."""
        top, bottom, left, right = self._rectangles(draws, height, width).unbind(1)
        pasted = ((bottom - top) * (right - left)).to(torch.float64) / (height * width)
        return self._mix_labels(labels, draws, 1 - pasted)


def blend_on_device(images: Tensor, partners: Tensor, kept: Tensor) -> Tensor:
    """Mix images with their partners (B,), with weights kept (B,) and 1 - kept."""
    share = kept[:, None, None, None]
    mixed = images * share
    mixed = torch.addcmul(mixed, images[partners], 1 - share, out=mixed)
    return (mixed if images.dtype.is_floating_point else mixed.add_(0.5)).to(images.dtype)


def blend_on_cpu(images: Tensor, partners: Tensor, kept: Tensor) -> Tensor:
    """The same on a CPU."""
    result = recycled(images.shape, images.dtype)
    pixels, written = images.flatten(1).numpy(), result.flatten(1).numpy()
    others, shares = partners.tolist(), kept.tolist()
    rounding = 0 if images.dtype.is_floating_point else 0.5

    def blend(row: int) -> None:
        mixed = np.multiply(pixels[row], shares[row], dtype=np.float32)
        mixed += np.multiply(pixels[others[row]], 1 - shares[row], dtype=np.float32)
        written[row] = np.add(mixed, rounding, out=mixed)

    return fill_rows(result, blend)


def paste_on_device(images: Tensor, partners: Tensor, rectangles: Tensor) -> Tensor:
    """Paste rectangles (B, 4) of the partners (B,) into the images."""
    top, bottom, left, right = rectangles[:, :, None].unbind(1)
    row, column = (torch.arange(size, device=images.device) for size in images.shape[1:3])
    rows, columns = (row >= top) & (row < bottom), (column >= left) & (column < right)
    return torch.where(rows[:, :, None, None] & columns[:, None, :, None], images[partners], images)


def paste_on_cpu(images: Tensor, partners: Tensor, rectangles: Tensor) -> Tensor:
    """The same on a CPU."""
    result = recycled(images.shape, images.dtype)
    pixels, written = images.numpy(), result.numpy()
    others, places = partners.tolist(), rectangles.tolist()

    def paste(row: int) -> None:
        top, bottom, left, right = places[row]
        written[row] = pixels[row]
        written[row, top:bottom, left:right] = pixels[others[row], top:bottom, left:right]

    return fill_rows(result, paste)


def _by_row(images: Tensor) -> bool:
    return images.device.type == "cpu" and images.dtype in (torch.uint8, torch.float32)


def _partners(draws: Draws) -> Tensor:
    """int64 (B,): for each image, the index of the image to mix it with; its own only if it is alone in the batch.

    This is random and not the row before: rows ascend within a batch, and neighbours in a store often have one class.
    """
    order = draws.uniform(5)[:, 4].argsort(stable=True)
    return torch.empty_like(order).scatter_(0, order, order.roll(1))


@cache
def _beta(alpha: float, power: float, device: torch.device) -> Tensor:
    """A table of samples of Beta(alpha, alpha), float64, raised to a power: the same on every machine.

    A device draws a sample by its index.
    """
    half = np.random.RandomState(0).beta(alpha, alpha, _SAMPLES // 2)  # unlike Generator, its stream never changes
    samples = np.concatenate([half, 1 - half]) ** power
    return torch.from_numpy(samples).to(device)
