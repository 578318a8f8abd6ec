"""The charts of a report are to scale."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markupsafe import Markup

from decodeonce.cli.report import charts
from decodeonce.cli.report.charts import Axis, short, y_axis
from decodeonce.cli.report.page import environment


def svg(chart: Markup) -> ElementTree.Element:
    """Parse the SVG that the page contains for a chart."""
    template = environment().from_string(
        '{% from "blocks.html" import figure %}{{ figure(chart, "key", "title", "text") }}'
    )
    return ElementTree.fromstring(template.render(chart=chart))


def shapes(chart: Markup, tag: str, style: str) -> list[dict[str, str]]:
    """Return the attributes of the elements with this tag and CSS class."""
    return [element.attrib for element in svg(chart).iter(tag) if style in element.attrib.get("class", "").split()]


def corners(path: str) -> list[tuple[float, float]]:
    """Return the points of an SVG path that consists of M, V, H and Z."""
    points = []
    x = y = 0.0
    for command, first, second in re.findall(r"([MVHZ])([\d.]*) ?([\d.]*)", path):
        if command == "M":
            x, y = float(first), float(second)
        elif command == "V":
            y = float(first)
        elif command == "H":
            x = float(first)
        points.append((x, y))
    return points


@pytest.mark.parametrize("classes", [1, 31, 360, 1000, 21841])
def test_class_curve_goes_through_counts(classes: int) -> None:
    counts = sorted(np.random.default_rng(0).integers(0, 1300, classes).tolist(), reverse=True)
    chart = charts.class_curve(counts)
    [area] = shapes(chart, "path", "area")
    x_of, y_of = Axis("", 0, classes), y_axis("", max(*counts, 1))
    points = corners(area["d"])[1:-2]
    assert len(points) <= 2 * charts.CURVE_POINTS
    for (x, y), (next_x, next_y) in zip(points[::2], points[1::2], strict=True):
        assert y == next_y
        index = round((x - x_of.start) / (x_of.end - x_of.start) * classes)
        near = {counts[i] for i in range(max(index - 5, 0), min(index + 6, classes))}
        assert min(abs(y - y_of.at(count)) for count in near) < 0.06
        assert next_x > x
    assert points[-1][0] == x_of.end


@pytest.mark.parametrize("channels", [1, 3])
def test_level_lines_go_through_shares(channels: int) -> None:
    counts = np.random.default_rng(0).integers(1, 100, (channels, 256)).astype(float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    lines = shapes(charts.levels(shares), "path", "line")
    inner = shares[:, 1:-1].max()
    up = y_axis("", 100 * min(shares.max(), 1.15 * inner))
    assert len(lines) == channels
    for line, expected in zip(lines, shares, strict=True):
        heights = [y for _, y in corners(line["d"])[1::2]]
        assert heights == pytest.approx([up.at(100 * value) for value in expected], abs=0.06)


def test_single_level_can_be_drawn() -> None:
    for level in (0, 128, 255):
        shares = np.zeros((3, 256))
        shares[:, level] = 1
        assert len(shapes(charts.levels(shares), "path", "line")) == 3


@given(st.floats(1e-3, 1e7), st.floats(1e-3, 1e7))
def test_axis_ticks_are_few_sorted_and_in_range(low: float, span: float) -> None:
    high = low + span
    assume(high - low > low / 1e6)
    axis = Axis("", low, high, 0, 100)
    ticks = axis.ticks()
    assert ticks == sorted(set(ticks))
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert len(ticks) <= 8
    assert all(-0.1 <= axis.at(tick) <= 100.1 for tick in ticks)


def test_very_frequent_level_does_not_flatten_the_others() -> None:
    shares = np.full((1, 256), 0.1 / 255)
    shares[0, 0] = 0.9
    [line] = shapes(charts.levels(shares), "path", "line")
    heights = [y for _, y in corners(line["d"])[1::2]]
    up = y_axis("", 1)
    assert min(heights) == heights[0] == pytest.approx(up.end, abs=0.06)
    assert heights[1:] == pytest.approx([up.at(1 / 1.15)] * 255, abs=0.06)


def test_axis_numbers_are_short() -> None:
    texts = {0: "0", 0.25: "0.25", 1300: "1300", 9999: "9999", 10000: "10k", 250000: "250k", 1.2e6: "1.2M"}
    assert {value: short(value) for value in texts} == texts
