"""Draw the charts of a report as inline SVG. The texts and tables next to them repeat their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

WIDTH, HEIGHT = 420.0, 260.0  # in units of about 1.2 CSS pixels on a desktop and 0.85 on a phone
LEFT, RIGHT, TOP, BOTTOM = 46.0, 18.0, 18.0, 36.0  # margins
BAR_HEIGHT = 18.0
MAX_BARS = 30  # more classes are drawn as a curve
CURVE_POINTS = 360
BINS = 44


class Chart(NamedTuple):
    """The shapes of a chart, which is WIDTH wide."""

    shapes: Markup
    height: float = HEIGHT


@dataclass(frozen=True)
class Axis:
    """A mapping of values from `low` to `high` to positions from `start` to `end`; logarithmic if `log`."""

    name: str
    low: float
    high: float
    start: float = LEFT
    end: float = WIDTH - RIGHT
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, value = (math.log2(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return about five round values, or powers of two if the axis is logarithmic."""
        if self.log:
            powers = range(math.ceil(math.log2(self.low)), math.floor(math.log2(self.high)) + 1)
            every = math.ceil(len(powers) / 7)
            return [2.0**power for power in powers if power % every == 0]
        span = self.high - self.low
        unit: float = 10 ** math.floor(math.log10(span / 2))
        step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if span / (unit * factor) <= 5)
        return [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def y_axis(name: str, low: float, high: float, *, log: bool = False) -> Axis:
    """Return an axis along the left side of a chart."""
    return Axis(name, low, high, HEIGHT - BOTTOM, TOP, log)


def short(value: float) -> str:
    """Format a number for an axis: 1200, 50k, 1.2M."""
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"


def _rect(x: float, y: float, width: float, height: float, style: str, opacity: float = 1.0) -> Markup:
    shape = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}" fill-opacity="{:.2g}"/>'
    return Markup(shape).format(x, y, width, height, style, opacity)


def _text(text: str, x: float, y: float, style: str = "", anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(x, y, style, anchor, text)


def _path(path: str, style: str) -> Markup:
    return Markup('<path d="{}" class="{}"/>').format(path, style)


def _chart(x: Axis, y: Axis, shapes: Iterable[Markup]) -> Chart:
    """Put shapes on two axes with their numbers and names, and a thin line at each number of the y axis."""
    axes = [_text(x.name, (x.start + x.end) / 2, y.start + 30, anchor="middle"), _text(y.name, 2, 9)]
    for tick in y.ticks():
        line = _path(f"M{x.start} {y.at(tick):.1f}H{x.end}", "rule")
        axes += [line, _text(short(tick), x.start - 5, y.at(tick) + 3.5, anchor="end")]
    axes += [_text(short(tick), x.at(tick), y.start + 14, anchor="middle") for tick in x.ticks()]
    return Chart(Markup("\n").join([*axes, *shapes]))


def class_bars(names: Sequence[str], counts: Sequence[int]) -> Chart:
    """Draw a bar for each class, with its name on it and its count at its end."""
    most, shapes = max(*counts, 1), []
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        y, width = index * BAR_HEIGHT, (WIDTH - 60) * count / most
        shapes += [_rect(0, y + 2, width, BAR_HEIGHT - 4, "bar pale"), _text(name, 6, y + 13, "within")]
        shapes.append(_text(f"{count:,}", max(width + 5, 6 + 6.2 * len(name)), y + 13))
    return Chart(Markup("\n").join(shapes), BAR_HEIGHT * len(counts))


def class_curve(counts: Sequence[int]) -> Chart:
    """Draw the rows of each class, largest class first, as an area."""
    x, y = Axis("classes, largest first", 0, len(counts)), y_axis("rows", 0, max(*counts, 1))
    points = min(len(counts), CURVE_POINTS)
    firsts = [point * len(counts) // points for point in range(points)]
    path = _steps(x, y, [*firsts[1:], len(counts)], [counts[first] for first in firsts])
    return _chart(x, y, [_path(f"{path}V{y.start:.1f}Z", "area")])


def size_map(sides: NDArray[np.float64], row: tuple[int, int]) -> Chart:
    """Draw a square for each range of widths and heights (n, 2); its opacity shows the number of images.

    A frame shows the size of a row, `row` (height, width).
    """
    low, high = _log_span(np.append(sides, row))
    x, y = Axis("width, pixels", low, high, log=True), y_axis("height, pixels", low, high, log=True)
    edges = np.geomspace(low, high, BINS + 1)
    counts, _, _ = np.histogram2d(sides[:, 0], sides[:, 1], bins=(edges, edges))
    width, height = (x.end - x.start) / BINS, (y.start - y.end) / BINS
    cells = [
        _rect(x.start + column * width, y.start - (line + 1) * height, width, height, "cell", 0.25 + 0.75 * share)
        for column, line in np.argwhere(counts).tolist()
        for share in [math.log1p(counts[column, line]) / math.log1p(counts.max())]
    ]
    frame = f"M{x.start:.1f} {y.at(row[0]):.1f}H{x.at(row[1]):.1f}V{y.start:.1f}"
    return _chart(x, y, [*cells, _path(frame, "mark")])


def shorter_sides(shorter: NDArray[np.float64], enlarged: NDArray[np.bool_] | None) -> Chart:
    """Draw the number of images by shorter side; enlarged images are the lower part of a bar, in another color."""
    low, high = _log_span(shorter)
    edges = np.geomspace(low, high, 41)
    counts = np.histogram(shorter, edges)[0].tolist()
    small = [0] * len(counts) if enlarged is None else np.histogram(shorter[enlarged], edges)[0].tolist()
    x, y = Axis("shorter side, pixels", low, high, log=True), y_axis("rows", 0, max(counts))
    bars = [
        _rect(x.at(left), y.at(top), x.at(right) - x.at(left) - 0.6, y.at(base) - y.at(top), style)
        for left, right, count, few in zip(edges[:-1], edges[1:], counts, small, strict=True)
        for base, top, style in ((0, few, "bar warm"), (few, count, "bar"))
        if top > base
    ]
    return _chart(x, y, bars)


def levels(shares: NDArray[np.float64]) -> Chart:
    """Draw the share of each of 256 levels as a line per channel; levels 0 and 255 may exceed the top of the chart."""
    inner = shares[:, 1:-1].max()
    most = float(min(shares.max(), 1.15 * inner) if inner > 0 else 1)
    x, y = Axis("level", 0, 256), y_axis("%", 0, 100 * most)
    styles = [f"line channel{channel}" if len(shares) > 1 else "line" for channel in range(len(shares))]
    lines = [_steps(x, y, range(1, 257), [100 * min(share, most) for share in line]) for line in shares.tolist()]
    return _chart(x, y, map(_path, lines, styles))


def _steps(x: Axis, y: Axis, ends: Iterable[float], values: Iterable[float]) -> str:
    """Return an SVG path of steps from the origin: each value is a horizontal line up to its end."""
    steps = (f"V{y.at(value):.1f}H{x.at(end):.1f}" for end, value in zip(ends, values, strict=True))
    return f"M{x.start:.1f} {y.start:.1f}{''.join(steps)}"


def _log_span(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: powers of the square root of 2, at least a factor of 2 apart."""
    low = math.floor(2 * math.log2(values.min())) / 2
    high = max(math.floor(2 * math.log2(values.max())) / 2 + 0.5, low + 1)
    return 2**low, 2**high
