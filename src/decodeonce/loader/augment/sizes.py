"""The size of a step's images: fixed, or a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable

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
