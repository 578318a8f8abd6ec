"""Numbers for people."""

from __future__ import annotations

from decodeonce.formatting import counted


def count(number: int) -> str:
    """A number with commas."""
    return f"{number:,}"


def number_of(number: int, one: str, many: str | None = None) -> str:
    """The number with its noun: "1,281,167 pictures"."""
    return f"{count(number)} {counted(number, one, many).partition(' ')[2]}"


def share(part: float, whole: float) -> str:
    """The share as a percentage: never 0 or 100 where it is neither."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return "below 0.1%" if percent < 1 else "above 99.9%"
    return f"{percent:.1f}".removesuffix(".0") + "%"
