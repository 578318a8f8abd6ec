"""Change colors and erase: ColorJitter, RandomGrayscale, Solarize, GaussianBlur and RandomErasing.

The names and arguments are those of torchvision, and so are the results, within one level. (For uint8, torchvision's
ColorJitter drops fractions several times; the result here is that for floats, rounded once.) Each image has its own
random numbers. In PerImage, torchvision's take 2 to 19 times as long on a CPU (bench/color.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from decodeonce.loader.augment import fused_color
from decodeonce.loader.augment.augment import Change, Draws, Plan
from decodeonce.loader.augment.crop import RandomResizedCrop, check_range
from decodeonce.loader.augment.fused import constant, either
from decodeonce.loader.augment.rows import PendingRows

Range = tuple[float, float]


@dataclass(frozen=True)
class _Color(Change):
    """Base of the steps for uint8 images with 3 channels, for which an accelerator has kernels."""

    def on_device(self, images: Tensor, draws: Draws, /) -> Tensor:
        """Change the chosen images in kernels, or all images in torch, and choose afterwards."""
        self._check(PendingRows.of(images))
        in_torch = super().on_device
        return either(images.device, lambda: self._launch(images, draws), lambda: in_torch(images, draws))

    def _check(self, rows: PendingRows) -> None:
        """Raise ValueError if the step cannot change such images."""
        if rows.dtype != torch.uint8 or rows.shape[2] != 3:
            found, name = f"{rows.shape[2]} of {rows.dtype}", type(self).__name__
            raise ValueError(f"{name} needs images with 3 channels of uint8, got {found}; put it before Normalize")

    def _launch(self, images: Tensor, draws: Draws) -> Tensor:
        """Run the kernels."""
        raise NotImplementedError


@dataclass(frozen=True)
class ColorJitter(_Color):
    """Change brightness, contrast, saturation and hue in random order, like torchvision's ColorJitter. uint8 only.

    Args:
        brightness: The factor is drawn from 1 - brightness to 1 + brightness, at least 0, or from a range (low, high).
            Default: 0, unchanged. `contrast` and `saturation` are the same.
        contrast: See `brightness`.
        saturation: See `brightness`.
        hue: The shift is drawn from -hue to hue, or from a range, within -0.5 to 0.5. Default: 0.
        p: Probability that an image is changed. Default: 1.0.

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if images are not uint8 with 3 channels.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), Normalize("imagenet"))
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.dtype
        torch.float32
    """

    brightness: float | Range = 0.0
    contrast: float | Range = 0.0
    saturation: float | Range = 0.0
    hue: float | Range = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._ranges

    @property
    def _ranges(self) -> tuple[Range, ...]:
        names = ("brightness", "contrast", "saturation")
        factors = (_range(name, getattr(self, name), 1, 0, math.inf) for name in names)
        return *factors, _range("hue", self.hue, 0, -0.5, 0.5)

    @property
    def _used(self) -> list[int]:
        """The numbers of the changes that change anything."""
        return [number for number, values in enumerate(self._ranges) if values != (_NEUTRAL[number],) * 2]

    def _launch(self, images: Tensor, draws: Draws) -> Tensor:
        return fused_color.jitter(images, draws, self.p, self._ranges, self._used)

    def _plan(self, rows: PendingRows, draws: Draws) -> Plan:
        self._check(rows)
        uniform, ranges, used = draws.uniform(9), self._ranges, self._used
        factors = torch.stack([low + uniform[:, i] * (high - low) for i, (low, high) in enumerate(ranges)], 1)
        order = uniform[:, 4:8].argsort(1)

        def jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
            planes = images.permute(3, 0, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
            for kind in order.unbind(1):
                planes = _adjust(planes, factors[:, :, None, None], kind, used)
            return (planes + 0.5).to(torch.uint8).permute(1, 2, 3, 0)

        return jitter, uniform[:, 8], (factors, order)


def _range(name: str, value: float | Range, middle: float, least: float, most: float) -> Range:
    ends = tuple(value) if isinstance(value, (tuple, list)) else (max(middle - value, least), middle + value)
    if len(ends) != 2 or not least <= ends[0] <= ends[1] <= most or math.isinf(ends[1]):
        raise ValueError(f"{name} is {value!r}, expected a number or a range (low, high) within {least} to {most}")
    return ends


def _adjust(planes: Tensor, factors: Tensor, kind: Tensor, used: list[int]) -> Tensor:
    """Apply adjustment number `kind` (B,) to planes (3, B, H, W) in 0..255."""
    if planes.device.type == "cpu" and len(kind) == 1:  # on a device, int() would wait
        number = int(kind)
        return _ADJUST[number](planes, factors[:, number]) if number in used else planes
    result = planes
    for number in used:
        changed = _ADJUST[number](planes, factors[:, number])
        result = torch.where((kind == number)[:, None, None], changed, result)
    return result


def _hue(planes: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue. The result is that of HSV: each channel is max - spread * clamp(2 - abs(place - 2), 0, 1).

    A channel's place on the circle of length 6 is the hue plus 5 for red, 3 for green and 1 for blue. The code below
    has a circle of length 1, because that takes fewer passes over the planes.
    """
    red, green, blue = planes
    most = torch.maximum(torch.maximum(red, green), blue)
    spread = most - torch.minimum(torch.minimum(red, green), blue)
    others = torch.where(most == green, (blue - red).add_(spread, alpha=2), (red - green).add_(spread, alpha=4))
    sixths = torch.where(most == red, green - blue, others).div_(6 * spread.clamp(min=_TINY)).add_(shift + 1)
    start = torch.linspace(5 / 6, 1 / 6, 3, dtype=planes.dtype, device=planes.device)[:, None, None, None]
    distance = (sixths + start).frac_().sub_(1 / 3).abs_().clamp_(1 / 6, 1 / 3)
    return torch.addcmul(most - 2 * spread, 6 * spread, distance)


_TINY = 1e-30  # in place of a spread of 0, whose hue is 0
_ADJUST: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda planes, brightness: (planes * brightness).clamp_(0, 255),
    lambda planes, contrast: torch.lerp(_gray(*planes.mean((2, 3), keepdim=True)), planes, contrast).clamp_(0, 255),
    lambda planes, saturation: torch.lerp(_gray(*planes), planes, saturation).clamp_(0, 255),
    _hue,
)
_NEUTRAL = (1, 1, 1, 0)


def _gray(red: Tensor, green: Tensor, blue: Tensor) -> Tensor:
    # A product of uint8 and a float would have torch's default dtype.
    return (red.to(torch.float32) * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


@dataclass(frozen=True)
class RandomGrayscale(_Color):
    """Make an image gray with probability `p`, like torchvision's RandomGrayscale. uint8 with 3 channels only.

    Args:
        p: Probability that an image becomes gray. Default: 0.1.

    Raises:
        ValueError: If `p` is not a probability or, at the first batch, if images are not uint8 with 3 channels.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), RandomGrayscale(p=0.2), Normalize("imagenet"))
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.shape
        torch.Size([16, 3, 224, 224])
    """

    p: float = 0.1

    def _launch(self, images: Tensor, draws: Draws) -> Tensor:
        return fused_color.recolor(images, draws, self.p, None)

    def _plan(self, rows: PendingRows, draws: Draws) -> Plan:
        self._check(rows)
        return _to_gray, draws.uniform(1)[:, 0], ()


def _to_gray(images: Tensor) -> Tensor:
    return _gray(*images.unbind(3)).to(torch.uint8)[:, :, :, None].expand(images.shape)


@dataclass(frozen=True)
class Solarize(_Color):
    """Invert the values of an image that are at least `threshold`, like torchvision's RandomSolarize. uint8 only.

    Args:
        threshold: 0 to 255. Default: 128.
        p: Probability that an image is changed. Default: 1.0.

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if images are not uint8 with 3 channels.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), Solarize(threshold=128, p=0.2), Normalize("imagenet"))
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.shape
        torch.Size([16, 3, 224, 224])
    """

    threshold: float = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 255:
            raise ValueError(f"threshold is {self.threshold!r}, expected 0 to 255")

    def _launch(self, images: Tensor, draws: Draws) -> Tensor:
        return fused_color.recolor(images, draws, self.p, self.threshold)

    def _plan(self, rows: PendingRows, draws: Draws) -> Plan:
        self._check(rows)

        def solarize(images: Tensor) -> Tensor:
            return torch.where(images >= self.threshold, 255 - images, images)

        return solarize, draws.uniform(1)[:, 0], ()


@dataclass(frozen=True)
class GaussianBlur(_Color):
    """Blur an image, like torchvision's GaussianBlur. uint8 with 3 channels only.

    Args:
        kernel_size: Pixels that are averaged in each direction, an odd number. Images must be larger than half of it.
        sigma: Standard deviation in pixels, above 0: one number, or a range (low, high) to draw it from for each image.
            Default: (0.1, 2.0).
        p: Probability that an image is changed. Default: 1.0.

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if images are not uint8 with 3 channels.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), GaussianBlur(23, p=0.5), Normalize("imagenet"))
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.shape
        torch.Size([16, 3, 224, 224])
    """

    kernel_size: int
    sigma: float | Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.kernel_size, int) or self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size is {self.kernel_size!r}, expected an odd number above 0")
        check_range("sigma", self._sigmas, math.inf)

    @property
    def _sigmas(self) -> Range:
        return self.sigma if isinstance(self.sigma, (tuple, list)) else (self.sigma, self.sigma)

    def _check(self, rows: PendingRows) -> None:
        super()._check(rows)
        if self.kernel_size > (most := 2 * min(rows.shape[:2]) - 1):
            size = f"{rows.shape[1]}x{rows.shape[0]}"
            raise ValueError(f"kernel_size is {self.kernel_size}, expected at most {most} for images of {size}")

    def _launch(self, images: Tensor, draws: Draws) -> Tensor:
        return fused_color.blur(images, draws, self.p, self._sigmas, self.kernel_size)

    def _plan(self, rows: PendingRows, draws: Draws) -> Plan:
        self._check(rows)
        uniform, (low, high), reach = draws.uniform(2), self._sigmas, self.kernel_size // 2
        offsets = torch.arange(-reach, reach + 1, dtype=torch.float32, device=uniform.device)
        sigma = low + uniform[:, :1] * (high - low)
        return _blur, uniform[:, 1], ((-0.5 * (offsets / sigma) ** 2).softmax(1),)


def _blur(images: Tensor, weights: Tensor) -> Tensor:
    """Average with weights (B, kernel_size), first columns, then lines. Edges are reflected."""
    if images.device.type == "cpu" and len(weights) == 1:  # on a device, int() would wait
        beyond = int((weights < LEAST).sum()) // 2
        weights = weights[:, beyond : weights.shape[1] - beyond]
    blurred, reach = images.to(torch.float32), weights.shape[1] // 2
    for dim in (1, 2):
        size = images.shape[dim]
        before, after = blurred.narrow(dim, 1, reach), blurred.narrow(dim, size - 1 - reach, reach)
        padded = torch.cat([before.flip(dim), blurred, after.flip(dim)], dim)
        blurred = torch.full_like(blurred, 0.5 if dim == 2 else 0.0)
        for first, weight in enumerate(weights[:, :, None, None, None].unbind(1)):
            blurred.addcmul_(padded.narrow(dim, first, size), weight)
    return blurred.to(torch.uint8)


LEAST = 2**-16  # smaller weights change a result by less than a tenth of a level


@dataclass(frozen=True)
class RandomErasing(Change):
    """Fill a random rectangle of an image, like torchvision's RandomErasing. Works for any dtype and channels.

    Args:
        p: Probability that an image is changed. Default: 0.5.
        scale: Smallest and largest share of the image area. Default: (0.02, 0.33).
        ratio: Smallest and largest height / width, uniform on a logarithmic scale. Default: (0.3, 3.3).
        value: What to fill it with, in the unit of the images: one number, or one per channel. Default: 0, which is the
            mean after ``Normalize``.

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if `value` does not fit the images.

    Example:
        >>> augment = Augment(RandomResizedCrop(224), Normalize("imagenet"), RandomErasing(p=0.25))
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.shape
        torch.Size([16, 3, 224, 224])
    """

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: float | tuple[float, ...] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("ratio", self.ratio, math.inf)
        if not self._values or not all(isinstance(value, Real) for value in self._values):
            raise ValueError(f"value is {self.value!r}, expected a number, or one per channel")
        _ = self._crop

    @property
    def _values(self) -> Sequence[float]:
        return self.value if isinstance(self.value, (tuple, list)) else (self.value,)

    @property
    def _crop(self) -> RandomResizedCrop:
        """Draws windows in the same way, but with ratios of width to height."""
        return RandomResizedCrop(1, scale=self.scale, ratio=(1 / self.ratio[1], 1 / self.ratio[0]))

    def _plan(self, rows: PendingRows, draws: Draws) -> Plan:
        if len(self._values) not in (1, rows.shape[2]):
            expected = f"expected {len(self._values)} as in value={self.value!r}"
            raise ValueError(f"images have {rows.shape[2]} channels, {expected}; pass one number, or one per channel")
        if rows.dtype == torch.uint8 and not all(0 <= value <= 255 for value in self._values):
            raise ValueError(f"value is {self.value!r}, expected 0 to 255 for images of uint8")
        fill = constant(tuple(map(float, self._values)), rows.dtype, rows.images.device)

        def erase(images: Tensor, windows: Tensor) -> Tensor:
            top, left, height, width = windows[:, :, None].unbind(1)
            row, column = (torch.arange(size, device=images.device) for size in images.shape[1:3])
            lines, columns = (row >= top) & (row < top + height), (column >= left) & (column < left + width)
            return torch.where(lines[:, :, None, None] & columns[:, None, :, None], fill, images)

        windows = self._crop.windows(draws, *rows.shape[:2]).to(torch.int64).to(rows.images.device)
        return erase, draws.uniform(23)[:, 22], (windows,)
