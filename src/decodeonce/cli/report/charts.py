"""Draw the charts of a report as inline SVG. The texts and tables next to them repeat their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

WIDTH, HEIGHT = 420.0, 260.0  # in units of about 1.2 CSS pixels on a desktop and 0.85 on a phone
LEFT, RIGHT, TOP, BOTTOM = 46.0, 18.0, 18.0, 36.0  # margins
CURVE_POINTS = 360


@dataclass(frozen=True)
class Axis:
    """A mapping of values from `low` to `high` to positions from `start` to `end`."""

    name: str
    low: float
    high: float
    start: float = LEFT
    end: float = WIDTH - RIGHT
    whole: bool = False  # counts have no fractions

    def at(self, value: float) -> float:
        """Return the position of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return about five round values."""
        span = self.high - self.low
        unit: float = 10 ** math.floor(math.log10(span / 2))
        step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if span / (unit * factor) <= 5)
        step = math.ceil(step) if self.whole else step
        return [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def y_axis(name: str, high: float, *, whole: bool = False) -> Axis:
    """Return an axis from 0 along the left side of a chart."""
    return Axis(name, 0, high, HEIGHT - BOTTOM, TOP, whole)


def short(value: float) -> str:
    """Format a number for an axis: 1200, 50k, 1.2M."""
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"


def _text(text: str, x: float, y: float, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _path(path: str, style: str) -> Markup:
    return Markup('<path d="{}" class="{}"/>').format(path, style)


def _chart(x: Axis, y: Axis, shapes: Iterable[Markup]) -> Markup:
    """Put shapes on two axes with their numbers and names, and a thin line at each number of the y axis."""
    axes = [_text(x.name, (x.start + x.end) / 2, y.start + 30, anchor="middle"), _text(y.name, 2, 9)]
    for tick in y.ticks():
        line = _path(f"M{x.start} {y.at(tick):.1f}H{x.end}", "rule")
        axes += [line, _text(short(tick), x.start - 5, y.at(tick) + 3.5, anchor="end")]
    axes += [_text(short(tick), x.at(tick), y.start + 14, anchor="middle") for tick in x.ticks()]
    return Markup("\n").join([*axes, *shapes])


def class_curve(counts: Sequence[int]) -> Markup:
    """Draw the rows of each class, largest class first, as an area."""
    x = Axis("classes, largest first", 0, len(counts), whole=True)
    y = y_axis("rows", max(*counts, 1), whole=True)
    points = min(len(counts), CURVE_POINTS)
    firsts = [point * len(counts) // points for point in range(points)]
    path = _steps(x, y, [*firsts[1:], len(counts)], [counts[first] for first in firsts])
    return _chart(x, y, [_path(f"{path}V{y.start:.1f}Z", "area")])


def levels(shares: NDArray[np.float64]) -> Markup:
    """Draw the share of each of 256 levels as a line per channel; levels 0 and 255 may exceed the top of the chart."""
    inner = shares[:, 1:-1].max()
    most = float(min(shares.max(), 1.15 * inner) if inner > 0 else 1)
    x, y = Axis("level", 0, 256), y_axis("%", 100 * most)
    styles = [f"line channel{channel}" if len(shares) > 1 else "line" for channel in range(len(shares))]
    lines = [_steps(x, y, range(1, 257), [100 * min(share, most) for share in line]) for line in shares.tolist()]
    return _chart(x, y, map(_path, lines, styles))


def _steps(x: Axis, y: Axis, ends: Iterable[float], values: Iterable[float]) -> str:
    """Return an SVG path of steps from the origin: each value is a horizontal line up to its end."""
    steps = (f"V{y.at(value):.1f}H{x.at(end):.1f}" for end, value in zip(ends, values, strict=True))
    return f"M{x.start:.1f} {y.start:.1f}{''.join(steps)}"
