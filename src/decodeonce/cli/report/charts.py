"""Compute the geometry of the charts; `templates/chart.html` draws them as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 420.0, 260.0  # in units of about 1.2 CSS pixels on a desktop and 0.85 on a phone
LEFT, RIGHT, TOP, BOTTOM = 46.0, 18.0, 18.0, 36.0  # margins
BAR_HEIGHT = 18.0
MAX_BARS = 30  # more classes are drawn as a curve
CURVE_POINTS = 360


def short(value: float) -> str:
    """Format a number for an axis: 1200, 50k, 1.2M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"


@dataclass(frozen=True)
class Axis:
    """A mapping of values from `low` to `high` to positions from `start` to `end`; logarithmic if `log`."""

    name: str
    low: float
    high: float
    start: float
    end: float
    log: bool = False
    tick_step: float | None = None

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, value = (math.log2(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return about five round values, or powers of two if the axis is logarithmic."""
        if self.log:
            powers = range(math.ceil(math.log2(self.low)), math.floor(math.log2(self.high)) + 1)
            every = max(1, math.ceil(len(powers) / 7))
            return [2.0**power for power in powers if power % every == 0]
        step = self.tick_step or self._round_step()
        return [step * k for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def _round_step(self) -> float:
        span = self.high - self.low
        unit: float = 10 ** math.floor(math.log10(span / 2))
        return unit * next(factor for factor in (1, 2, 2.5, 5, 10) if span / (unit * factor) <= 5)


def x_axis(name: str, low: float, high: float, *, log: bool = False, tick_step: float | None = None) -> Axis:
    """Return an axis along the bottom of a chart."""
    return Axis(name, low, high, LEFT, WIDTH - RIGHT, log, tick_step)


def y_axis(name: str, low: float, high: float, *, log: bool = False) -> Axis:
    """Return an axis along the left side of a chart."""
    return Axis(name, low, high, HEIGHT - BOTTOM, TOP, log)


@dataclass(frozen=True)
class Bar:
    """A rectangle; `style` is its CSS class."""

    x: float
    y: float
    width: float
    height: float
    style: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Curve:
    """An SVG path; `style` is its CSS class."""

    path: str
    style: str


@dataclass(frozen=True)
class Label:
    """A left-aligned text with its baseline at `y`; `style` is its CSS class."""

    text: str
    x: float
    y: float
    style: str


@dataclass(frozen=True)
class Chart:
    """The parts of a chart; `axes` are x and y."""

    axes: tuple[Axis, Axis] | None = None
    bars: Sequence[Bar] = ()
    curves: Sequence[Curve] = ()
    labels: Sequence[Label] = ()
    width: float = WIDTH
    height: float = HEIGHT


def class_bars(names: Sequence[str], counts: Sequence[int]) -> Chart:
    """Draw a bar for each class, with its name on it and its count at its end."""
    most, bars, labels = max(*counts, 1), [], []
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        y, width = index * BAR_HEIGHT, (WIDTH - 60) * count / most
        bars.append(Bar(0, y + 2, width, BAR_HEIGHT - 4, "bar pale"))
        labels.append(Label(name, 6, y + 13, "within"))
        labels.append(Label(f"{count:,}", max(width + 5, 6 + 6.2 * len(name)), y + 13, "count"))
    return Chart(bars=bars, labels=labels, height=BAR_HEIGHT * len(counts))


def class_curve(counts: Sequence[int]) -> Chart:
    """Draw the rows of each class, largest class first, as an area."""
    x, y = x_axis("classes, largest first", 0, len(counts)), y_axis("rows", 0, max(*counts, 1))
    points = min(len(counts), CURVE_POINTS)
    firsts = [point * len(counts) // points for point in range(points)]
    path = _steps(x, y, [*firsts[1:], len(counts)], [counts[first] for first in firsts])
    return Chart((x, y), curves=[Curve(f"{path}V{y.start:.1f}Z", "area")])


def size_map(widths: NDArray[np.int64], heights: NDArray[np.int64], row: tuple[int, int]) -> Chart:
    """Draw a square for each range of widths and heights; its opacity shows the number of images.

    A frame shows the size of a row, `row` (height, width).
    """
    low, high = _log_span(np.concatenate([widths, heights, np.array(row)]))
    x, y = x_axis("width, pixels", low, high, log=True), y_axis("height, pixels", low, high, log=True)
    bins = 44
    edges = np.geomspace(low, high, bins + 1)
    counts, _, _ = np.histogram2d(widths, heights, bins=(edges, edges))
    cell_width, cell_height = (x.end - x.start) / bins, (y.start - y.end) / bins
    cells = []
    for column, line in np.argwhere(counts).tolist():
        left, top = x.start + column * cell_width, y.start - (line + 1) * cell_height
        opacity = 0.25 + 0.75 * math.log1p(counts[column, line]) / math.log1p(counts.max())
        cells.append(Bar(left, top, cell_width, cell_height, "cell", opacity))
    frame = f"M{x.start:.1f} {y.at(row[0]):.1f}H{x.at(row[1]):.1f}V{y.start:.1f}"
    return Chart((x, y), cells, [Curve(frame, "mark")])


def shorter_sides(shorter: NDArray[np.int64], enlarged: NDArray[np.bool_] | None) -> Chart:
    """Draw the number of images by shorter side; enlarged images are the lower part of a bar, in another color."""
    low, high = _log_span(shorter)
    edges = np.geomspace(low, high, 41)
    counts = np.histogram(shorter, edges)[0].tolist()
    small = [0] * len(counts) if enlarged is None else np.histogram(shorter[enlarged], edges)[0].tolist()
    x, y = x_axis("shorter side, pixels", low, high, log=True), y_axis("rows", 0, max(counts))
    bars = []
    for left, right, count, few in zip(edges[:-1], edges[1:], counts, small, strict=True):
        for base, top, style in ((0, few, "bar warm"), (few, count, "bar")):
            if top > base:
                width, height = x.at(right) - x.at(left) - 0.6, y.at(base) - y.at(top)
                bars.append(Bar(x.at(left), y.at(top), width, height, style))
    return Chart((x, y), bars)


def levels(shares: NDArray[np.float64]) -> Chart:
    """Draw the share of each of 256 levels as a line per channel; levels 0 and 255 may exceed the top of the chart."""
    inner = shares[:, 1:-1].max()
    most = float(min(shares.max(), 1.15 * inner) if inner > 0 else 1)
    x, y = x_axis("level", 0, 256, tick_step=64), y_axis("%", 0, 100 * most)
    curves = []
    for channel, line in enumerate(shares.tolist()):
        path = _steps(x, y, range(1, 257), [100 * min(share, most) for share in line])
        curves.append(Curve(path, f"line channel{channel}" if len(shares) > 1 else "line"))
    return Chart((x, y), curves=curves)


def _steps(x: Axis, y: Axis, ends: Iterable[float], values: Iterable[float]) -> str:
    """Return an SVG path of steps from the origin: each value is a horizontal line up to its end."""
    steps = (f"V{y.at(value):.1f}H{x.at(end):.1f}" for end, value in zip(ends, values, strict=True))
    return f"M{x.start:.1f} {y.start:.1f}{''.join(steps)}"


def _log_span(values: NDArray[np.int64]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: powers of the square root of 2, at least a factor of 2 apart."""
    low = math.floor(2 * math.log2(values.min())) / 2
    high = max(math.floor(2 * math.log2(values.max())) / 2 + 0.5, low + 1)
    return 2**low, 2**high
