"""Crops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodeonce.loader.augment.constants import constant
from decodeonce.loader.augment.draws import Draws
from decodeonce.loader.augment.resize import resize_windows
from decodeonce.loader.augment.sizes import Size, check_size, size_at

_TRIES = 10


@dataclass(frozen=True)
class _Crop:
    """A window of the images' own pixels."""

    size: Size

    def __post_init__(self) -> None:
        check_size(self.size)

    def window(self, images: Tensor, epoch: int) -> tuple[int, int]:
        """(height, width) of the window in this epoch."""
        height, width = size_at(self.size, epoch)
        if height > images.shape[1] or width > images.shape[2]:
            found = f"{images.shape[1]}x{images.shape[2]}"
            raise ValueError(f"a crop of {height}x{width} is larger than pictures of {found}")
        return height, width


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """The middle of each picture, a view; where it is off by half a pixel, it lies as torchvision's does.

    size: pixels, one number or (height, width), or a function of the epoch that returns one. Raises ValueError for one
    larger than the pictures.
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = self.window(images, draws.epoch)
        top, left = round((images.shape[1] - height) / 2.0), round((images.shape[2] - width) / 2.0)
        return images[:, top : top + height, left : left + width]


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """A window of each picture, anywhere in it with equal probability; any dtype.

    size: pixels, one number or (height, width), or a function of the epoch that returns one. Raises ValueError for one
    larger than the pictures.
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = self.window(images, draws.epoch)
        top, left = draws.uniform(2).unbind(1)
        top = (top * (images.shape[1] - height + 1)).to(torch.int64)
        left = (left * (images.shape[2] - width + 1)).to(torch.int64)
        # All windows as a view, of which one a picture is copied: 0.03 ms a picture of 256x256 on two cores, where
        # indexing by rows and columns takes 0.22.
        windows = images.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
        return windows[torch.arange(len(images), device=images.device), top, left]


@dataclass(frozen=True)
class RandomResizedCrop:
    """A window of random area and shape of each picture, resized; windows are chosen as torchvision does.

    Gives float32 levels 0..255, not rounded: bilinear with antialiasing, Pillow's `crop(box).resize(size, BILINEAR)`
    but for its rounding; where torch may multiply float32 as TF32, off by fractions of a level. size: pixels, one
    number or (height, width), or a function of the epoch that returns one. scale: least and greatest share of the area.
    ratio: least and greatest width / height, equally likely on a logarithmic scale.
    """

    size: Size
    scale: tuple[float, float] = field(default=(0.08, 1.0), kw_only=True)
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3), kw_only=True)

    def __post_init__(self) -> None:
        check_size(self.size)
        _check_range("scale", self.scale, 1)
        _check_range("ratio", self.ratio, math.inf)

    def boxes(self, draws: Draws, height: int, width: int) -> Tensor:
        """(B, 4) whole numbers: top, left, height and width of the windows in pictures of this height and width.

        After torchvision's RandomResizedCrop.get_params: the first of ten sizes that fits, else a central window.
        """
        # In doubles, hardly any size is so close to a half that one device rounds it up and another down.
        uniform = draws.uniform(2 * _TRIES + 2).to(torch.float64)
        low, high = self.scale
        areas = (low + (high - low) * uniform[:, :_TRIES]) * (height * width)
        low, high = map(math.log, self.ratio)
        ratios = (low + (high - low) * uniform[:, _TRIES:-2]).exp()
        sizes = torch.stack([(areas / ratios).sqrt(), (areas * ratios).sqrt()], 2).round()
        whole = constant((height, width), torch.float64, uniform.device)
        low, high = self.ratio
        widest = min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))
        central = constant(widest, torch.float64, uniform.device).expand(len(sizes), 1, 2)
        fits = torch.nn.functional.pad(((sizes >= 1) & (sizes <= whole)).all(2), (0, 1), value=True)
        first = fits.to(torch.int32).argmax(1)[:, None]  # of several that are greatest it is the first
        size = torch.cat([sizes, central], 1).gather(1, first[:, :, None].expand(-1, 1, 2))[:, 0]
        spare = whole - size
        corner = torch.where(first == _TRIES, spare / 2, uniform[:, -2:] * (spare + 1)).floor()
        return torch.cat([corner, size], 1)

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        windows = self.boxes(draws, images.shape[1], images.shape[2])
        return resize_windows(images, windows, *size_at(self.size, draws.epoch))


def _check_range(name: str, values: tuple[float, float], most: float) -> None:
    if len(values) != 2 or not 0 < values[0] <= values[1] <= most or math.isinf(values[1]):
        bound = "" if math.isinf(most) else f", {most} at most"
        raise ValueError(f"{name} is {values!r}, expected two numbers above 0, the greater one second{bound}")
