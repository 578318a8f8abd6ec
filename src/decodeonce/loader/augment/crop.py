"""Crops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodeonce.loader.augment.boxes import map_boxes
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

    def _window(self, draws: Draws, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the window in images of this height and width."""
        size = size_at(self.size, draws.epoch)
        if size[0] > height or size[1] > width:
            raise ValueError(f"a crop of {size[0]}x{size[1]} is larger than pictures of {height}x{width}")
        return size


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """The middle of each picture, a view; where it is off by half a pixel, it lies as torchvision's does.

    size: pixels, one number or (height, width), or a function of the epoch that returns one. Raises ValueError for one
    larger than the pictures.
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = self._window(draws, images.shape[1], images.shape[2])
        top, left = _centre(images.shape[1], height), _centre(images.shape[2], width)
        return images[:, top : top + height, left : left + width]

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract the window's corner."""
        out_height, out_width = self._window(draws, height, width)
        top, left = _centre(height, out_height), _centre(width, out_width)
        return map_boxes(boxes, lambda x: x - left, lambda y: y - top)


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """A window of each picture, anywhere in it with equal probability; any dtype.

    size: pixels, one number or (height, width), or a function of the epoch that returns one. Raises ValueError for one
    larger than the pictures.
    """

    def _corners(self, draws: Draws, spare_height: int, spare_width: int) -> tuple[Tensor, Tensor]:
        """(B,) whole numbers each: top and left of the windows, which the images exceed by so many pixels."""
        top, left = draws.uniform(2).unbind(1)
        return (top * (spare_height + 1)).to(torch.int64), (left * (spare_width + 1)).to(torch.int64)

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = self._window(draws, images.shape[1], images.shape[2])
        top, left = self._corners(draws, images.shape[1] - height, images.shape[2] - width)
        # All windows as a view, of which one a picture is copied: 0.03 ms a picture of 256x256 on two cores, where
        # indexing by rows and columns takes 0.22.
        windows = images.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
        return windows[torch.arange(len(images), device=images.device), top, left]

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract each window's corner."""
        out_height, out_width = self._window(draws, height, width)
        top, left = self._corners(draws, height - out_height, width - out_width)
        return map_boxes(boxes, lambda x: x - left[:, None], lambda y: y - top[:, None])


@dataclass(frozen=True)
class RandomResizedCrop:
    """A window of random area and shape of each picture, resized; windows are chosen as torchvision does.

    Bilinear with antialiasing, as Pillow's `crop(box).resize(size, BILINEAR)`. uint8 images stay uint8: Pillow, a CPU
    and other devices differ by at most one level. Images of other types become float32, not rounded. On a CPU it runs
    in as many threads as torch.get_num_threads() says. size: pixels, one number or (height, width), or a function of
    the epoch that returns one. scale: least and greatest share of the area. ratio: least and greatest width / height,
    equally likely on a logarithmic scale.
    """

    size: Size
    scale: tuple[float, float] = field(default=(0.08, 1.0), kw_only=True)
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3), kw_only=True)

    def __post_init__(self) -> None:
        check_size(self.size)
        _check_range("scale", self.scale, 1)
        _check_range("ratio", self.ratio, math.inf)

    def windows(self, draws: Draws, height: int, width: int) -> Tensor:
        """(B, 4) whole numbers: top, left, height and width of the windows in pictures of this height and width.

        After torchvision's RandomResizedCrop.get_params: the first of ten sizes that fits, else a central window.
        """
        # In doubles, hardly any size is so close to a half that one device rounds it up and another down. On a CPU,
        # torch uses threads for exp(), sqrt() and round() of the smallest tensors. These threads then spin for 10 ms
        # on cores that resizing needs, so there are exp2(), rsqrt() and a cast.
        uniform = draws.uniform(2 * _TRIES + 2).to(torch.float64)
        low, high = self.scale
        areas = (low + (high - low) * uniform[:, :_TRIES]) * (height * width)
        low, high = map(math.log2, self.ratio)
        ratios = torch.exp2(low + (high - low) * uniform[:, _TRIES:-2])
        squares = torch.stack([areas / ratios, areas * ratios], 2)
        sizes = _whole(squares * squares.rsqrt() + 0.5)
        whole = constant((height, width), torch.float64, uniform.device)
        low, high = self.ratio
        widest = min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))
        central = constant(widest, torch.float64, uniform.device).expand(len(sizes), 1, 2)
        fits = torch.nn.functional.pad(((sizes >= 1) & (sizes <= whole)).all(2), (0, 1), value=True)
        first = fits.to(torch.int32).argmax(1)[:, None]  # of several that are greatest it is the first
        size = torch.cat([sizes, central], 1).gather(1, first[:, :, None].expand(-1, 1, 2))[:, 0]
        spare = whole - size
        corner = _whole(torch.where(first == _TRIES, spare / 2, uniform[:, -2:] * (spare + 1)))
        return torch.cat([corner, size], 1)

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        windows = self.windows(draws, images.shape[1], images.shape[2])
        return resize_windows(images, windows, *size_at(self.size, draws.epoch))

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract each window's corner and scale: fractions of pixels, computed in float64, rounded to float32."""
        out_height, out_width = size_at(self.size, draws.epoch)
        top, left, box_height, box_width = self.windows(draws, height, width)[:, :, None].unbind(1)
        # float64 rounds alike on every device, and leaves one rounding that counts: the last.
        moved = map_boxes(
            boxes.to(torch.float64),
            lambda x: (x - left) * out_width / box_width,
            lambda y: (y - top) * out_height / box_height,
        )
        return moved.to(boxes.dtype)


def _whole(numbers: Tensor) -> Tensor:
    """Drop what is behind the point."""
    return numbers.to(torch.int64).to(numbers.dtype)


def _centre(size: int, window: int) -> int:
    return round((size - window) / 2.0)


def _check_range(name: str, values: tuple[float, float], most: float) -> None:
    if len(values) != 2 or not 0 < values[0] <= values[1] <= most or math.isinf(values[1]):
        bound = "" if math.isinf(most) else f", {most} at most"
        raise ValueError(f"{name} is {values!r}, expected two numbers above 0, the greater one second{bound}")
