"""The image size of a step: fixed, or a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable

from decodeonce.loader.arguments import whole

FixedSize = int | tuple[int, int]
Size = FixedSize | Callable[[int], FixedSize]


def check_size(size: Size) -> None:
    """Raise ValueError if a fixed size is not valid. The results of a function are checked when it is called."""
    if not callable(size):
        _pair(size, "size")


def size_at(size: Size, epoch: int) -> tuple[int, int]:
    """(height, width) in this epoch."""
    return _pair(size(epoch), f"size({epoch})") if callable(size) else _pair(size, "size")


def _pair(size: FixedSize, name: str) -> tuple[int, int]:
    pair = size if isinstance(size, tuple) else (size, size)
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in pair):
        raise ValueError(f"{name} is {size!r}, expected a whole number of pixels or (height, width), each at least 1")
    return pair


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
        Callable[[int], int]: From the epoch to the size in pixels; a `size` of the crops in this package.

    Raises:
        ValueError: If a number is out of range, or `last_epoch` is not after `first_epoch`.

    Example:
        >>> crop = RandomResizedCrop(ramp(65, 160, 76, 192))
    """
    first_epoch, last_epoch = whole("first_epoch", first_epoch, 0), whole("last_epoch", last_epoch, 0)
    first_size, last_size = whole("first_size", first_size, 1), whole("last_size", last_size, 1)
    multiple = whole("multiple", multiple, 1)
    if last_epoch <= first_epoch:
        raise ValueError(f"last_epoch is {last_epoch}, expected an epoch after first_epoch={first_epoch}")

    def size(epoch: int) -> int:
        if epoch <= first_epoch:
            return first_size
        if epoch >= last_epoch:
            return last_size
        share = (epoch - first_epoch) / (last_epoch - first_epoch)
        rounded = round((first_size + share * (last_size - first_size)) / multiple) * multiple
        least, most = sorted((first_size, last_size))
        return min(max(rounded, least), most)

    return size
