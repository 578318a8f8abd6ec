"""What every drawing is made of: axes, their numbers, words, and the SVG around it all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from decodeonce.cli.report.markup import Markup, element

WIDTH, HEIGHT = 420.0, 260.0  # units of a drawing: some 1.2 CSS pixels on a desktop, 0.85 on a phone
LEFT, RIGHT, TOP, BOTTOM = 46.0, 18.0, 12.0, 36.0


def number(value: float) -> str:
    """A coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def short(value: float) -> str:
    """A number for an axis: 1200, 50k, 1.2M."""
    for unit, name in ((1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / (1e6 if name == 'M' else 1e3):g}{name}"
    return f"{value:g}"


@dataclass(frozen=True)
class Axis:
    """Values `low` to `high` along `start` to `end`, in units of the drawing; by their logarithms if `log`.

    `every` is the step from a number to the next, where that is given.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    every: float | None = None

    def at(self, value: float) -> float:
        """Where a value lies."""
        low, high, value = (math.log2(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values on the axis: some five, or powers of two."""
        if self.log:
            powers = range(math.ceil(math.log2(self.low)), math.floor(math.log2(self.high)) + 1)
            every = max(1, math.ceil(len(powers) / 7))
            return [2.0**power for power in powers if power % every == 0]
        step = self.every or self._step()
        first = math.ceil(self.low / step)
        return [step * k for k in range(first, math.floor(self.high / step) + 1)]

    def _step(self) -> float:
        step: float = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (self.high - self.low) / (step * factor) <= 5)
        return step


def drawing(key: str, title: str, told: str, *shapes: str, height: float = HEIGHT) -> Markup:
    """An SVG with a name and a description for who does not see it; `key` is its own in the page."""
    names = (element("title", title, id=f"{key}-title"), element("desc", told, id=f"{key}-desc"))
    box = f"0 0 {number(WIDTH)} {number(height)}"
    labelled = f"{key}-title {key}-desc"
    return element("svg", *names, *shapes, viewBox=box, role="img", aria_labelledby=labelled, class_="chart")


def label(text: str, x: float, y: float, *, anchor: str = "middle", class_: str | None = None) -> Markup:
    """A word in a drawing."""
    return element("text", text, x=number(x), y=number(y), text_anchor=anchor, class_=class_)


def frame(across: Axis, up: Axis, across_name: str, up_name: str) -> Iterator[Markup]:
    """The axes of a drawing with their numbers, and thin lines across."""
    for tick in up.ticks():
        y = up.at(tick)
        yield element("line", x1=number(across.start), x2=number(across.end), y1=number(y), y2=number(y), class_="rule")
        yield label(short(tick), across.start - 5, y + 3.5, anchor="end")
    for tick in across.ticks():
        yield label(short(tick), across.at(tick), up.start + 14)
    yield label(across_name, (across.start + across.end) / 2, up.start + 30, class_="name")
    yield label(up_name, 2, 9, anchor="start", class_="name")


def plot(low: float, high: float, *, log: bool = False, every: float | None = None) -> Axis:
    """An axis across a drawing."""
    return Axis(low, high, LEFT, WIDTH - RIGHT, log, every)


def climb(low: float, high: float, *, log: bool = False) -> Axis:
    """An axis up a drawing."""
    return Axis(low, high, HEIGHT - BOTTOM, TOP + 6, log)
