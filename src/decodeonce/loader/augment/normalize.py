"""Normalize images with mean and standard deviation: Normalize."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from decodeonce.loader.arguments import StoreLike, as_store, refuse_arguments
from decodeonce.loader.augment.augment import Draws, Step
from decodeonce.loader.augment.fused import Chain, constant
from decodeonce.loader.augment.rows import PendingRows

IMAGENET: tuple[tuple[float, ...], tuple[float, ...]] = (
    (0.485 * 255, 0.456 * 255, 0.406 * 255),
    (0.229 * 255, 0.224 * 255, 0.225 * 255),
)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


Statistics = tuple[Sequence[float], Sequence[float]] | list[list[float]]


class Normalize(Step):
    """Normalize each channel: (value - mean) / std, computed in float32.

    Args:
        statistics: Where mean and std come from: an open ``Store``, the path of a store, "imagenet", or your own
            (mean, std), a number per channel in 0 to 1, as in torchvision. ``((0, 0, 0), (1, 1, 1))`` scales to 0..1.
        dtype: dtype of the result: torch.float32 (default), torch.bfloat16 or torch.float16.

    Attributes:
        mean: Mean of each channel, in 0..255.
        std: Standard deviation of each channel, in 0..255.
        dtype: dtype of the result.

    Raises:
        ValueError: If `dtype` is not one of these, the path of the store does not exist, your own `statistics` are not
            in 0 to 1, a std is 0 or, at the first batch, images have a different number of channels.
        StoreError: If the store is damaged.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), Normalize("train.store", dtype=torch.bfloat16))
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.dtype
        torch.bfloat16
    """

    moves_pixels = False

    @refuse_arguments("pass mean and std as a pair: Normalize((mean, std))", {})
    def __init__(
        self, statistics: StoreLike | Statistics | Literal["imagenet"], *, dtype: torch.dtype = torch.float32
    ) -> None:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(map(str, _DTYPES))}")
        if isinstance(statistics, str) and statistics != "imagenet" and not os.path.lexists(statistics):
            raise ValueError(f'there are no statistics for {statistics!r}; expected "imagenet", a store or (mean, std)')
        self.dtype, (self.mean, self.std) = dtype, IMAGENET
        if isinstance(statistics, (tuple, list)):
            self.mean, self.std = _levels(statistics)
        elif statistics != "imagenet":
            manifest = as_store(statistics).manifest
            self.mean, self.std = manifest.pixel_mean, manifest.pixel_std
        if not all(self.std):
            raise ValueError(f"{statistics}: the std of its channels is {self.std}, expected numbers above 0")

    def __repr__(self) -> str:
        mean, std = (tuple(round(value / 255, 4) for value in values) for values in (self.mean, self.std))
        return f"Normalize(({mean}, {std}), dtype={self.dtype})"

    def on_rows(self, rows: PendingRows, draws: Draws, /) -> PendingRows | None:
        """Normalize uint8 images row by row."""
        if rows.dtype != torch.uint8:
            return None
        scale, shift = self._factors(rows.shape[2], rows.images.device)
        # A line with all channels is long enough for vector instructions.
        scales, shifts, dtype = scale.repeat(rows.shape[1]), shift.repeat(rows.shape[1]), self.dtype

        def normalize(image: Tensor, row: int, place: Tensor | None) -> Tensor:
            if place is None or dtype != torch.float32:
                place = torch.empty(image.shape, dtype=torch.float32)
            place.flatten(1).copy_(image.flatten(1)).mul_(scales).add_(shifts)
            return place if dtype == torch.float32 else place.to(dtype)

        return rows.then(normalize, rows.shape, dtype)

    def on_kernel(self, chain: Chain, draws: Draws, /) -> Chain | None:
        """Normalize the images."""
        return chain.normalize(*self._factors(chain.shape[2], chain.images.device), self.dtype)

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Normalize the images of a batch."""
        scale, shift = self._factors(images.shape[3], images.device)
        # One pass over memory: torch computes in float32, the common dtype of the inputs, and casts when it writes.
        result = torch.empty(images.shape, dtype=self.dtype, device=images.device)
        return torch.addcmul(shift, images, scale, out=result)

    def _factors(self, channels: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Scale and shift (C,): the normalized value is value * scale + shift."""
        if channels != len(self.mean):
            raise ValueError(f"images have {channels} channels, expected {len(self.mean)} as in the statistics")
        shift = tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))
        return (constant(tuple(1 / s for s in self.std), torch.float32, device), constant(shift, torch.float32, device))


def _levels(statistics: Statistics) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Convert (mean, std) from 0..1 to 0..255. ValueError if they are not in 0 to 1, or of different lengths."""
    numbers = all(isinstance(values, Iterable) for values in statistics)
    found = tuple(tuple(map(float, values)) for values in statistics) if numbers else ()
    if (
        len(found) != 2
        or not len(found[0]) == len(found[1])
        or not all(0 <= v <= 1 for values in found for v in values)
    ):
        raise ValueError(f"statistics are {statistics!r}, expected (mean, std), each a number per channel in 0 to 1")
    mean, std = (tuple(value * 255 for value in values) for values in found)
    return mean, std
