"""Crop images: CenterCrop, RandomCrop and RandomResizedCrop; their sizes; and resizing, bilinear with antialiasing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, interpolate, pad

from decodeonce.loader.arguments import whole
from decodeonce.loader.augment import fused
from decodeonce.loader.augment.augment import Draws, Resampling, Step, map_boxes
from decodeonce.loader.augment.fused import Chain, constant
from decodeonce.loader.augment.rows import PendingRows

FixedSize = int | tuple[int, int]
Size = FixedSize | Callable[[int], FixedSize]

_TRIES = 10


def size_at(size: Size, epoch: int) -> tuple[int, int]:
    """(height, width) in this epoch. ValueError if the size is not valid."""
    name, found = (f"size({epoch})", size(epoch)) if callable(size) else ("size", size)
    pair = found if isinstance(found, tuple) else (found, found)
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in pair):
        raise ValueError(f"{name} is {found!r}, expected a whole number of pixels or (height, width), each at least 1")
    return pair


def check_size(size: Size) -> None:
    """Raise ValueError if a fixed size is not valid. The results of a function are checked when it is called."""
    if not callable(size):
        size_at(size, 0)


def ramp(
    first_epoch: int, first_size: int, last_epoch: int, last_size: int, *, multiple: int = 32
) -> Callable[[int], int]:
    """Create an image size that changes linearly between two epochs, for progressive resizing.

    Small images in the first epochs make training faster. FFCV's ResNet-50 for 88 epochs uses
    ``ramp(65, 160, 76, 192)``.

    Args:
        first_epoch: Up to this epoch, the size is `first_size`. 0 or more.
        first_size: Size in pixels, at least 1.
        last_epoch: From this epoch on, the size is `last_size`. Must be after `first_epoch`.
        last_size: Size in pixels, at least 1.
        multiple: Sizes between are rounded to a multiple of this number of pixels. Default: 32.

    Returns:
        Callable[[int], int]: A function from the epoch to the size in pixels. Pass it as `size` to a crop of this
        module.

    Raises:
        ValueError: If a number is out of range, or `last_epoch` is not after `first_epoch`.

    Example:
        >>> size = ramp(65, 160, 76, 192)
        >>> [size(epoch) for epoch in (0, 70, 71, 88)]
        [160, 160, 192, 192]
        >>> crop = RandomResizedCrop(size)
    """
    first_epoch, last_epoch = whole("first_epoch", first_epoch, 0), whole("last_epoch", last_epoch, 0)
    first_size, last_size = whole("first_size", first_size, 1), whole("last_size", last_size, 1)
    multiple = whole("multiple", multiple, 1)
    if last_epoch <= first_epoch:
        raise ValueError(f"last_epoch is {last_epoch}, expected an epoch after first_epoch={first_epoch}")

    return _Ramp(first_epoch, first_size, last_epoch, last_size, multiple)


@dataclass(frozen=True)
class _Ramp:
    """What `ramp` returns."""

    first_epoch: int
    first_size: int
    last_epoch: int
    last_size: int
    multiple: int

    def __repr__(self) -> str:
        steps = f"{self.first_epoch}, {self.first_size}, {self.last_epoch}, {self.last_size}"
        return f"ramp({steps}, multiple={self.multiple})"

    def __call__(self, epoch: int) -> int:
        share = (epoch - self.first_epoch) / (self.last_epoch - self.first_epoch)
        if not 0 < share < 1:
            return self.first_size if share <= 0 else self.last_size
        rounded = round((self.first_size + share * (self.last_size - self.first_size)) / self.multiple) * self.multiple
        least, most = sorted((self.first_size, self.last_size))
        return min(max(rounded, least), most)


@dataclass(frozen=True)
class _Crop(Step):
    """Base of crops that do not resize."""

    crops = True
    size: Size

    def __post_init__(self) -> None:
        check_size(self.size)

    def _corner(self, draws: Draws, spare_height: int, spare_width: int) -> tuple[Any, Any]:
        """Top and left of the windows, each a number or int64 (B, 1). Images exceed a window by the spare pixels."""
        raise NotImplementedError

    def _window(self, draws: Draws, height: int, width: int) -> tuple[Any, Any, int, int]:
        """Top, left, height and width of the windows; ValueError if they are larger than the images."""
        out_height, out_width = size_at(self.size, draws.epoch)
        if out_height > height or out_width > width:
            raise ValueError(f"a crop of {out_height}x{out_width} is larger than the images, {height}x{width}")
        return *self._corner(draws, height - out_height, width - out_width), out_height, out_width

    def on_rows(self, rows: PendingRows, draws: Draws, /) -> PendingRows:
        """Crop the windows row by row, without copying pixels."""
        top, left, height, width = self._window(draws, *rows.shape[:2])
        count = len(rows.images)
        tops, lefts = (torch.as_tensor(corner).expand(count, 1)[:, 0].tolist() for corner in (top, left))
        windows = [[top, left, height, width] for top, left in zip(tops, lefts, strict=True)]
        return rows.crop(windows, (height, width, rows.shape[2]))

    def on_kernel(self, chain: Chain, draws: Draws, /) -> Chain:
        """Crop the windows."""
        top, left, height, width = self._window(draws, *chain.shape[:2])
        top, left = (corner[:, 0] if isinstance(corner, Tensor) else corner for corner in (top, left))
        return chain.crop(top, left, height, width)

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract the corner of each window from its `boxes`."""
        top, left, _, _ = self._window(draws, height, width)
        return map_boxes(boxes, lambda x: x - left, lambda y: y - top)

    def move_maps(self, maps: Tensor, draws: Draws, resampling: Resampling, /) -> Tensor:
        """Crop the `maps` like the images."""
        return self.on_device(maps, draws)


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Crop the center of each image. Works for any dtype, and returns a view without copying pixels.

    If the center is between two pixels, the crop is at the same position as torchvision's.

    Args:
        size: Size in pixels, as one number or (height, width), or a function from the epoch to a size (see ``ramp``).

    Raises:
        ValueError: If `size` is not valid or, when a batch is cropped, larger than the images.

    Example:
        >>> loader = Loader("train.store", batch_size=16, transform=Augment(CenterCrop(224)))
        >>> next(iter(loader)).images.shape
        torch.Size([16, 3, 224, 224])
    """

    def _corner(self, draws: Draws, spare_height: int, spare_width: int) -> tuple[int, int]:
        return round(spare_height / 2.0), round(spare_width / 2.0)

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Return views of the windows."""
        top, left, height, width = self._window(draws, *images.shape[1:3])
        return images[:, top : top + height, left : left + width]


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """Crop a random window from each image; every position has the same probability. Works for any dtype.

    Args:
        size: Size in pixels, as one number or (height, width), or a function from the epoch to a size (see ``ramp``).

    Raises:
        ValueError: If `size` is not valid or, when a batch is cropped, larger than the images.

    Example:
        >>> loader = Loader("train.store", batch_size=16, transform=Augment(RandomCrop((192, 224))))
        >>> next(iter(loader)).images.shape
        torch.Size([16, 3, 192, 224])
    """

    def _corner(self, draws: Draws, spare_height: int, spare_width: int) -> tuple[Tensor, Tensor]:
        top, left = draws.uniform(2).split(1, 1)
        return (top * (spare_height + 1)).to(torch.int64), (left * (spare_width + 1)).to(torch.int64)

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Copy the windows of a batch."""
        top, left, height, width = self._window(draws, *images.shape[1:3])
        # Index a view of all windows, so that one window per image is copied. On two cores this takes 0.03 ms per image
        # of 256x256; indexing by rows and columns takes 0.22 ms.
        windows = images.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)
        return windows[torch.arange(len(images), device=images.device), top[:, 0], left[:, 0]]


@dataclass(frozen=True)
class RandomResizedCrop(Step):
    """Crop a window of random area and aspect ratio from each image and resize it, as torchvision does.

    Resizing is bilinear with antialiasing, like Pillow's ``crop(box).resize(size, BILINEAR)``. uint8 images stay uint8;
    the results of Pillow, a CPU and other devices differ by at most one level. Images of a yuv420 or bc4 store are
    resized before they become RGB: then the results of a CPU and other devices differ by at most three levels, and few
    pixels from Pillow's by more. Images of other dtypes become float32 and are not rounded. On a CPU it uses
    ``torch.get_num_threads()`` threads, at most 8.

    Args:
        size: Size of the result in pixels, as one number or (height, width), or a function from the epoch to a size
            (see ``ramp``).
        scale: Smallest and largest share of the image area. Default: (0.08, 1.0).
        ratio: Smallest and largest width / height, uniform on a logarithmic scale. Default: (3/4, 4/3).

    Raises:
        ValueError: If `size`, `scale` or `ratio` is not valid.

    Example:
        >>> augment = Augment(RandomResizedCrop(224, scale=(0.25, 1.0)), RandomFlip(), seed=0)
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.shape
        torch.Size([16, 3, 224, 224])
    """

    crops = True
    size: Size
    scale: tuple[float, float] = field(default=(0.08, 1.0), kw_only=True)
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3), kw_only=True)

    def __post_init__(self) -> None:
        check_size(self.size)
        check_range("scale", self.scale, 1)
        check_range("ratio", self.ratio, math.inf)

    def windows(self, draws: Draws, height: int, width: int) -> Tensor:
        """Return the windows that are cropped, one per row of the batch.

        As in torchvision's ``RandomResizedCrop.get_params``, the first of ten random sizes that fits is used. If none
        fits, the window is central.

        Args:
            draws: Random numbers of this step.
            height: Height of the images in pixels.
            width: Width of the images in pixels.

        Returns:
            Tensor: float64 (B, 4), whole numbers: top, left, height and width. In host memory if the device does not
            compute float64.
        """
        device = draws.rows.device
        if float64_device(device) != device:
            return self._windows(draws, height, width)

        def launch() -> Tensor:
            low, ratio = self.scale[0], math.log2(self.ratio[0])
            ranges = low, self.scale[1] - low, ratio, math.log2(self.ratio[1]) - ratio
            limits = constant((*ranges, height, width, *self._widest(height, width)), torch.float64, device)
            return fused.windows(draws.rows, draws.word, limits, _TRIES)

        return fused.either(device, launch, lambda: self._windows(draws, height, width))

    def _widest(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the window if no random size fits."""
        low, high = self.ratio
        return min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))

    def _windows(self, draws: Draws, height: int, width: int) -> Tensor:
        """The same in torch. `draw_windows` of kernel.py does this line by line."""
        # In float64, a size is hardly ever so close to a half that two devices round it differently. On a CPU, torch
        # runs exp(), sqrt() and round() of even the smallest tensors in threads, which then spin for 10 ms on cores
        # that resizing needs. exp2(), rsqrt() and a cast avoid that.
        uniform = draws.uniform(2 * _TRIES + 2)
        uniform = uniform.to(float64_device(uniform.device)).to(torch.float64)
        low, high = self.scale
        areas = (low + (high - low) * uniform[:, :_TRIES]) * (height * width)
        low, high = map(math.log2, self.ratio)
        ratios = torch.exp2(low + (high - low) * uniform[:, _TRIES:-2])
        squares = torch.stack([areas / ratios, areas * ratios], 2)
        sizes = _whole(squares * squares.rsqrt() + 0.5)
        whole = constant((height, width), torch.float64, uniform.device)
        central = constant(self._widest(height, width), torch.float64, uniform.device).expand(len(sizes), 1, 2)
        fits = pad(((sizes >= 1) & (sizes <= whole)).all(2), (0, 1), value=True)
        first = fits.to(torch.int32).argmax(1)[:, None]  # argmax returns the first of equal values
        size = torch.cat([sizes, central], 1).gather(1, first[:, :, None].expand(-1, 1, 2))[:, 0]
        spare = whole - size
        corner = _whole(torch.where(first == _TRIES, spare / 2, uniform[:, -2:] * (spare + 1)))
        return torch.cat([corner, size], 1)

    def on_rows(self, rows: PendingRows, draws: Draws, /) -> PendingRows | None:
        """Crop and resize uint8 images row by row."""
        if rows.dtype != torch.uint8:
            return None
        return resize_rows(rows, self.windows(draws, *rows.shape[:2]), *size_at(self.size, draws.epoch))

    def on_kernel(self, chain: Chain, draws: Draws, /) -> Chain | None:
        """Crop and resize the images."""

        def windows() -> Tensor:
            drawn = self.windows(draws, *chain.shape[:2])
            return drawn if drawn.device == chain.images.device else drawn.to(torch.float32).to(chain.images.device)

        return chain.resize(windows, *size_at(self.size, draws.epoch))

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Crop and resize the images of a batch."""
        windows = self.windows(draws, images.shape[1], images.shape[2])
        return resize_on_device(images, windows, *size_at(self.size, draws.epoch))

    def move_boxes(self, boxes: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
        """Subtract the corner of each window from its `boxes` and scale them to the new size."""
        out_height, out_width = size_at(self.size, draws.epoch)
        top, left, box_height, box_width = self.windows(draws, height, width)[:, :, None].unbind(1)
        # float64 gives the same bits on every device, so that the only relevant rounding is the last, to float32.
        moved = map_boxes(
            boxes.to(top.device).to(torch.float64),
            lambda x: (x - left) * out_width / box_width,
            lambda y: (y - top) * out_height / box_height,
        )
        return moved.to(boxes.dtype).to(boxes.device)

    def move_maps(self, maps: Tensor, draws: Draws, resampling: Resampling, /) -> Tensor:
        """Crop and resize the `maps` like the images."""
        if resampling == "bilinear":
            return self(maps, draws)
        windows = self.windows(draws, maps.shape[1], maps.shape[2])
        return resize_nearest(maps, windows, *size_at(self.size, draws.epoch))


@cache
def float64_device(device: torch.device) -> torch.device:
    """Where to compute float64 for a device: there, or on the CPU if it cannot, as Intel Arc and Apple's GPUs."""
    try:
        torch.ones(1, dtype=torch.float64, device=device).add_(1)
    except (RuntimeError, TypeError):
        return torch.device("cpu")
    return device


def _whole(numbers: Tensor) -> Tensor:
    """Drop the fractional part."""
    return numbers.to(torch.int64).to(numbers.dtype)


def check_range(name: str, values: tuple[float, float], most: float) -> None:
    """Raise ValueError unless these are two numbers above 0 and at most `most`, in order."""
    two = isinstance(values, Sized) and len(values) == 2
    if not two or not 0 < values[0] <= values[1] <= most or math.isinf(values[1]):
        bound = "" if math.isinf(most) else f" of at most {most}"
        raise ValueError(f"{name} is {values!r}, expected two numbers above 0{bound}, the larger one second")


def resize_on_device(images: Tensor, windows: Tensor, height: int, width: int) -> Tensor:
    """Resize a window (top, left, height, width) of each image (B, H, W, C) on any device.

    uint8 images stay uint8 (rounded); other dtypes become float32. Matrix products would be shorter, but they lose
    precision where the user's program allows it (TF32, autocast).
    """
    batch, full_height, full_width, channels = images.shape
    top, left, box_height, box_width = windows.to(torch.float32).to(images.device).unbind(1)
    lines = images.to(torch.float32).reshape(batch, full_height, full_width * channels)
    lines = _resample(lines, top, box_height, height).view(batch, height, full_width, channels)
    columns = lines.transpose(1, 2).reshape(batch, full_width, height * channels)
    columns = _resample(columns, left, box_width, width)
    levels = columns.view(batch, width, height, channels).transpose(1, 2)
    if images.dtype != torch.uint8:
        return levels
    return levels.add_(0.5).to(torch.uint8, memory_format=torch.contiguous_format)  # halves up, as on a CPU


def resize_nearest(maps: Tensor, windows: Tensor, height: int, width: int) -> Tensor:
    """Resize a window of each map by taking the nearest values, as torch's "nearest-exact" and Pillow do."""
    top, left, box_height, box_width = windows[:, :, None].unbind(1)
    row, column = (torch.arange(0.5, size, dtype=torch.float64, device=top.device) for size in (height, width))
    rows = (top + row * box_height / height).to(torch.int64).to(maps.device)
    columns = (left + column * box_width / width).to(torch.int64).to(maps.device)
    batch = torch.arange(len(maps), device=maps.device)
    return maps[batch[:, None, None], rows[:, :, None], columns[:, None, :]]


def resize_rows(rows: PendingRows, windows: Tensor, out_height: int, out_width: int) -> PendingRows:
    """Resize uint8 images on a CPU with torch's kernel for uint8; differs from `resize_on_device` by at most one level.

    Resizing a window from 256x256 to 224x224 takes 0.1 ms; `resize_on_device` takes 1.2 ms.
    """

    def resize(window: Tensor) -> Tensor:
        # [None] before permute() gives the strides that torch accepts as channels_last; the result has them too.
        resized = interpolate(
            window[None].permute(0, 3, 1, 2), (out_height, out_width), mode="bilinear", antialias=True
        )
        return resized.permute(0, 2, 3, 1)[0]

    return rows.crop(windows.to(torch.int64).tolist(), (out_height, out_width, rows.shape[2]), resize)


def _resample(lines: Tensor, first: Tensor, length: Tensor, out: int) -> Tensor:
    """Resize `length` (B,) lines, starting at `first` (B,), of lines (B, size, N) to `out` lines, in float32.

    The weights are those of Pillow: a triangle that widens as the image shrinks, cut off at the edges of the window
    (src/libImaging/Resample.c, precompute_coeffs). Each new line is a sum of those lines that the widest one reaches.
    """
    batch, size, width = lines.shape
    reached = math.ceil(2 * max(1.0, size / out))
    scale = (length / out)[:, None]
    reach = scale.clamp(min=1)
    centers = first[:, None] + torch.arange(0.5, out, dtype=torch.float32, device=lines.device) * scale
    offsets = torch.arange(0.0, reached, dtype=torch.float32, device=lines.device)
    places = (centers - reach + 0.5).floor_()[:, :, None] + offsets
    inside = (places >= first[:, None, None]) & (places < (first + length)[:, None, None])
    distances = (places + 0.5 - centers[:, :, None]).div_(reach[:, :, None]).abs_()
    weights = distances.neg_().add_(1).clamp_(min=0).mul_(inside)
    weights = weights.div_(weights.sum(2, keepdim=True)).view(batch * out, reached)
    numbers = places.clamp_(0, size - 1).to(torch.int64)
    numbers += torch.arange(0, batch * size, size, device=lines.device)[:, None, None]
    table, numbers = lines.reshape(batch * size, width), numbers.view(batch * out, reached)
    return embedding_bag(numbers, table, per_sample_weights=weights, mode="sum").view(batch, out, width)
