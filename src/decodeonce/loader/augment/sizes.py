"""The size of a step's images: fixed, or a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable

from decodeonce.loader.settings import check_whole

FixedSize = int | tuple[int, int]
Size = FixedSize | Callable[[int], FixedSize]


def check_size(size: Size) -> None:
    """Raise ValueError for a fixed size that is not one. What a function gives is checked when it is used."""
    if not callable(size):
        _pair(size, "size")


def size_at(size: Size, epoch: int) -> tuple[int, int]:
    """(height, width) in this epoch."""
    return _pair(size(epoch), f"size({epoch})") if callable(size) else _pair(size, "size")


def _pair(size: FixedSize, name: str) -> tuple[int, int]:
    pair = size if isinstance(size, tuple) else (size, size)
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in pair):
        raise ValueError(f"{name} is {size!r}, expected a whole number of pixels or (height, width), 1 or more")
    return pair


def ramp(
    first_epoch: int, first_size: int, last_epoch: int, last_size: int, *, multiple: int = 32
) -> Callable[[int], int]:
    """Return a size that changes linearly from one epoch to another, as a function of the epoch.

    Small images in the first epochs make training faster (progressive resizing). FFCV's ResNet-50 of 88 epochs has
    `ramp(65, 160, 76, 192)`.

    Args:
        first_epoch: Up to it the size is `first_size`.
        first_size: Pixels.
        last_epoch: From it on the size is `last_size`.
        last_size: Pixels.
        multiple: Sizes in between are rounded to a multiple of it.

    Raises:
        ValueError: If a number is out of range, or `last_epoch` is not after `first_epoch`.

    Example:
        >>> RandomResizedCrop(ramp(65, 160, 76, 192))
    """
    check_whole(0, first_epoch=first_epoch, last_epoch=last_epoch)
    check_whole(1, first_size=first_size, last_size=last_size, multiple=multiple)
    if last_epoch <= first_epoch:
        raise ValueError(f"last_epoch is {last_epoch}, expected one after first_epoch={first_epoch}")

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
