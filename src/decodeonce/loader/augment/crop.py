"""Crop images: CenterCrop, RandomCrop and RandomResizedCrop."""

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
    """Base of crops that do not resize."""

    size: Size

    def __post_init__(self) -> None:
        check_size(self.size)

    def _window(self, draws: Draws, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the crop; ValueError if it is larger than the images."""
        size = size_at(self.size, draws.epoch)
        if size[0] > height or size[1] > width:
            raise ValueError(f"a crop of {size[0]}x{size[1]} is larger than the images, {height}x{width}")
        return size


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Crop the center of each image. Works for any dtype, and returns a view without copying pixels.

    If the center is between two pixels, the crop is at the same position as torchvision's.

    Args:
        size: Size in pixels, as one number or (height, width), or a function from the epoch to a size (see ``ramp``).

    Raises:
        ValueError: If `size` is not valid or, when a batch is cropped, larger than the images.
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = self._window(draws, images.shape[1], images.shape[2])
        top, left = _centre(images.shape[1], height), _centre(images.shape[2], width)
        return images[:, top : top + height, left : left + width]

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract the corner of the window from `boxes` (see ``BoxStep``)."""
        out_height, out_width = self._window(draws, height, width)
        top, left = _centre(height, out_height), _centre(width, out_width)
        return map_boxes(boxes, lambda x: x - left, lambda y: y - top)


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """Crop a random window from each image; every position has the same probability. Works for any dtype.

    Args:
        size: Size in pixels, as one number or (height, width), or a function from the epoch to a size (see ``ramp``).

    Raises:
        ValueError: If `size` is not valid or, when a batch is cropped, larger than the images.
    """

    def _corners(self, draws: Draws, spare_height: int, spare_width: int) -> tuple[Tensor, Tensor]:
        """Top and left of the windows, int64 (B,) each; images exceed the window by the spare height and width."""
        top, left = draws.uniform(2).unbind(1)
        return (top * (spare_height + 1)).to(torch.int64), (left * (spare_width + 1)).to(torch.int64)

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        height, width = self._window(draws, images.shape[1], images.shape[2])
        top, left = self._corners(draws, images.shape[1] - height, images.shape[2] - width)
        # Index a view of all windows, so that one window per image is copied. On two cores this takes 0.03 ms per image
        # of 256x256; indexing by rows and columns takes 0.22 ms.
        windows = images.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
        return windows[torch.arange(len(images), device=images.device), top, left]

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract the corner of each window from its `boxes` (see ``BoxStep``)."""
        out_height, out_width = self._window(draws, height, width)
        top, left = self._corners(draws, height - out_height, width - out_width)
        return map_boxes(boxes, lambda x: x - left[:, None], lambda y: y - top[:, None])


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crop a window of random area and aspect ratio from each image and resize it, as torchvision does.

    Resizing is bilinear with antialiasing, like Pillow's ``crop(box).resize(size, BILINEAR)``. uint8 images stay uint8;
    the results of Pillow, a CPU and other devices differ by at most one level. Images of other dtypes become float32
    and are not rounded. On a CPU it uses ``torch.get_num_threads()`` threads, at most 8.

    Args:
        size: Size of the result in pixels, as one number or (height, width), or a function from the epoch to a size
            (see ``ramp``).
        scale: Smallest and largest share of the image area. Default: (0.08, 1.0).
        ratio: Smallest and largest width / height, uniform on a logarithmic scale. Default: (3/4, 4/3).

    Raises:
        ValueError: If `size`, `scale` or `ratio` is not valid.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), RandomFlip(), seed=0)
    """

    size: Size
    scale: tuple[float, float] = field(default=(0.08, 1.0), kw_only=True)
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3), kw_only=True)

    def __post_init__(self) -> None:
        check_size(self.size)
        _check_range("scale", self.scale, 1)
        _check_range("ratio", self.ratio, math.inf)

    def windows(self, draws: Draws, height: int, width: int) -> Tensor:
        """Return the windows that are cropped, one per row of the batch.

        As in torchvision's ``RandomResizedCrop.get_params``, the first of ten random sizes that fits is used; if none
        fits, a central window.

        Args:
            draws: Random numbers of this step.
            height: Height of the images in pixels.
            width: Width of the images in pixels.

        Returns:
            Tensor: float64 (B, 4), whole numbers: top, left, height and width.
        """
        # In float64, a size is hardly ever so close to a half that two devices round it differently. On a CPU, torch
        # runs exp(), sqrt() and round() of even the smallest tensors in threads, which then spin for 10 ms on cores
        # that resizing needs. exp2(), rsqrt() and a cast avoid that.
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
        first = fits.to(torch.int32).argmax(1)[:, None]  # argmax returns the first of equal values
        size = torch.cat([sizes, central], 1).gather(1, first[:, :, None].expand(-1, 1, 2))[:, 0]
        spare = whole - size
        corner = _whole(torch.where(first == _TRIES, spare / 2, uniform[:, -2:] * (spare + 1)))
        return torch.cat([corner, size], 1)

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        windows = self.windows(draws, images.shape[1], images.shape[2])
        return resize_windows(images, windows, *size_at(self.size, draws.epoch))

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract the corner of each window from its `boxes` and scale them to the new size (see ``BoxStep``)."""
        out_height, out_width = size_at(self.size, draws.epoch)
        top, left, box_height, box_width = self.windows(draws, height, width)[:, :, None].unbind(1)
        # float64 gives the same bits on every device, so that the only relevant rounding is the last, to float32.
        moved = map_boxes(
            boxes.to(torch.float64),
            lambda x: (x - left) * out_width / box_width,
            lambda y: (y - top) * out_height / box_height,
        )
        return moved.to(boxes.dtype)


def _whole(numbers: Tensor) -> Tensor:
    """Drop the fractional part."""
    return numbers.to(torch.int64).to(numbers.dtype)


def _centre(size: int, window: int) -> int:
    return round((size - window) / 2.0)


def _check_range(name: str, values: tuple[float, float], most: float) -> None:
    if len(values) != 2 or not 0 < values[0] <= values[1] <= most or math.isinf(values[1]):
        bound = "" if math.isinf(most) else f" of at most {most}"
        raise ValueError(f"{name} is {values!r}, expected two numbers above 0{bound}, the larger one second")
