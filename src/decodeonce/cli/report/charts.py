"""Charts as inline SVG, in the page's colours: text says what each shows, and tables beside them have the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decodeonce.cli.report.axes import WIDTH, climb, drawing, frame, label, number, plot
from decodeonce.cli.report.markup import Markup, element, joined

BAR = 18.0  # height of a class's line
NAMED_BARS = 30  # classes that get a line each
POINTS = 360  # of a curve


def class_bars(names: Sequence[str], counts: Sequence[int], told: str) -> Markup:
    """A line for each class, with its name in it and its count at its end."""
    most, shapes = max(*counts, 1), []
    for index, (name, count) in enumerate(zip(names, counts, strict=True)):
        y, width = index * BAR, (WIDTH - 60) * count / most
        bar = {"x": "0", "y": number(y + 2), "width": number(width), "height": number(BAR - 4)}
        shapes.append(element("rect", **bar, rx="2", class_="bar pale"))
        shapes.append(label(name, 6, y + 13, anchor="start", class_="within"))
        shapes.append(label(f"{count:,}", max(width + 5, 6 + 6.2 * len(name)), y + 13, anchor="start"))
    return drawing("classes", "Rows of each class", told, *shapes, height=BAR * len(counts))


def class_curve(counts: Sequence[int], told: str) -> Markup:
    """Rows of each class, largest class first, as an area."""
    across, up = plot(0, len(counts)), climb(0, max(*counts, 1))
    points = min(len(counts), POINTS)
    places = [point * len(counts) // points for point in range(points)]
    ends = [*places[1:], len(counts)]
    path = f"M{number(across.start)} {number(up.start)}"
    for first, last in zip(places, ends, strict=True):
        path += f"V{number(up.at(counts[first]))}H{number(across.at(last))}"
    area = element("path", d=f"{path}V{number(up.start)}Z", class_="area")
    axes = frame(across, up, "classes, largest first", "rows")
    return drawing("classes", "Rows of each class", told, *axes, area)


def size_map(widths: NDArray[np.int64], heights: NDArray[np.int64], row: tuple[int, int], told: str) -> Markup:
    """How many pictures are of which width and height: darker squares hold more; a frame as large as a row."""
    low, high = _log_span(np.concatenate([widths, heights, np.array(row)]))
    bins = 44
    edges = np.geomspace(low, high, bins + 1)
    held, _, _ = np.histogram2d(widths, heights, bins=(edges, edges))
    across, up, shapes = plot(low, high, log=True), climb(low, high, log=True), []
    wide, tall = (across.end - across.start) / bins, (up.start - up.end) / bins
    for x, y in np.argwhere(held):
        strength = 0.25 + 0.75 * math.log1p(held[x, y]) / math.log1p(held.max())
        place = {"x": number(across.start + x * wide), "y": number(up.start - (y + 1) * tall)}
        size = {"width": number(wide), "height": number(tall)}
        shapes.append(element("rect", **place, **size, class_="cell", fill_opacity=f"{strength:.2f}"))
    corner = (across.at(row[1]), up.at(row[0]))
    edge = f"M{number(across.start)} {number(corner[1])}H{number(corner[0])}V{number(up.start)}"
    mark = element("path", d=edge, class_="mark")
    axes = frame(across, up, "width, pixels", "height, pixels")
    return drawing("sizes", "Width and height of the source pictures", told, *axes, *shapes, mark)


def shorter_sides(shorter: NDArray[np.int64], enlarged: NDArray[np.bool_] | None, told: str) -> Markup:
    """How many pictures have which shorter side; those that were enlarged in another colour, below the others."""
    low, high = _log_span(shorter)
    edges = np.geomspace(low, high, 41)
    total = np.histogram(shorter, edges)[0].tolist()
    small = np.histogram(shorter[enlarged], edges)[0].tolist() if enlarged is not None else [0] * 40
    across, up, shapes = plot(low, high, log=True), climb(0, max(total)), []
    for left, right, held, grown in zip(edges[:-1].tolist(), edges[1:].tolist(), total, small, strict=True):
        x, wide = across.at(left), across.at(right) - across.at(left) - 0.6
        for base, top, colour in ((0, grown, "bar warm"), (grown, held, "bar")):
            if top > base:
                place = {"x": number(x), "y": number(up.at(top)), "width": number(wide)}
                shapes.append(element("rect", **place, height=number(up.at(base) - up.at(top)), class_=colour))
    axes = frame(across, up, "shorter side, pixels", "rows")
    return drawing("shorter", "Shorter side of the source pictures", told, *axes, *shapes)


def _log_span(values: NDArray[np.int64]) -> tuple[float, float]:
    """Ends of an axis that holds these: powers of the square root of two, at least a factor of two apart."""
    low = math.floor(2 * math.log2(values.min())) / 2
    high = max(math.floor(2 * math.log2(values.max())) / 2 + 0.5, low + 1)
    return 2**low, 2**high


def levels(shares: NDArray[np.float64], told: str) -> Markup:
    """The share that each level has of its channel, a line a channel; the ends may go beyond the drawing's top."""
    inner = shares[:, 1:-1].max()
    most = float(min(shares.max(), 1.15 * inner) if inner > 0 else 1)
    across, up, shapes = plot(0, 256, every=64), climb(0, 100 * most), []
    for channel, line in enumerate(shares.tolist()):
        heights = [up.at(100 * min(share, most)) for share in line]
        steps = "".join(f"V{number(y)}H{number(across.at(level + 1))}" for level, y in enumerate(heights))
        path = f"M{number(across.start)} {number(up.start)}{steps}"
        shapes.append(element("path", d=path, class_=f"line channel{channel}" if len(shares) > 1 else "line"))
    return drawing("levels", "Levels of each channel", told, *frame(across, up, "level", "%"), *shapes)


def side_by_side(*figures: str) -> Markup:
    """Drawings beside each other where there is room."""
    return element("div", joined(*figures), class_="charts")
