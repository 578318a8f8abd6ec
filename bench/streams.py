"""Draw what the streams of a device did, as an SVG image: one lane per stream, copies under compute.

The input is the trace that torch.profiler writes with `export_chrome_trace`
(https://docs.pytorch.org/docs/stable/profiler.html). Its events of a device have a category, a start `ts` and a
duration `dur` in microseconds, and the number of their stream.

The background is transparent, and text is in a grey that is readable on white and on black (contrast 4.5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

KINDS = {"kernel": "compute", "gpu_memcpy": "copies", "gpu_memset": "compute"}  # by the category of an event
STEP = {"cat": "gpu_user_annotation", "name": "ProfilerStep#"}
COLOURS = {"compute": "#3b82c4", "copies": "#d9480f"}
GREY = "#767676"
WIDTH, MARGIN, TITLE, LANE, GAP = 960, 12, 22, 30, 12  # pixels
TICKS = 8

Span = tuple[float, float]  # start and end in milliseconds since the first event
Lane = dict[str, list[Span]]  # spans by kind


@dataclass(frozen=True)
class Streams:
    """The work of each stream by its number; the consumer's stream, which computes longest, comes first.

    `steps` are the times in milliseconds at which it begins a step of the profiler.
    """

    lanes: dict[int, Lane]
    steps: list[float]


def read_streams(trace: dict[str, Any]) -> Streams:
    """Read a Chrome trace.

    Raises:
        ValueError: If the trace has no work of a device.
    """
    spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    events = [event for event in spans if event.get("cat") in KINDS]
    if not events:
        raise ValueError("the trace has no work of a device; record it on a GPU, with its activities")
    first = min(event["ts"] for event in events)
    lanes: dict[int, Lane] = {}
    for event in events:
        lane = lanes.setdefault(int(event["args"]["stream"]), {kind: [] for kind in COLOURS})
        start = (event["ts"] - first) / 1e3
        lane[KINDS[event["cat"]]].append((start, start + event["dur"] / 1e3))
    lanes = dict(sorted(lanes.items(), key=lambda lane: -total(merged(lane[1]["compute"]))))
    marks = [event for event in spans if event.get("cat") == STEP["cat"] and event["name"].startswith(STEP["name"])]
    consumer = next(iter(lanes))
    return Streams(lanes, sorted((event["ts"] - first) / 1e3 for event in marks if event["tid"] == consumer))


def hidden_share(streams: Streams) -> float:
    """Return the share of the time of copies on side streams in which the consumer's stream was busy."""
    consumer, *others = streams.lanes.values()
    busy = merged([*consumer["compute"], *consumer["copies"]])
    copies = merged([span for lane in others for span in lane["copies"]])
    common = sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in copies for begin, stop in busy)
    return common / total(copies) if copies else 0.0


def draw(streams: Streams) -> str:
    """Return an SVG image. Gaps narrower than a pixel are not shown; dashed lines are starts of steps."""
    lanes = streams.lanes
    length = max(end for lane in lanes.values() for spans in lane.values() for _, end in spans)
    scale = (WIDTH - 2 * MARGIN) / length
    bottom = len(lanes) * (TITLE + LANE + GAP)
    height = bottom + 36
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" font-family="sans-serif" font-size="13" fill="{GREY}">',
        "<title>Work of each stream of the device over time</title>",
    ]
    for number, (stream, lane) in enumerate(lanes.items()):
        top = number * (TITLE + LANE + GAP)
        name = "a side stream" if number else "the consumer's stream"
        steps = "; dashed lines: starts of steps" if streams.steps and not number else ""
        lines.append(f'<text x="{MARGIN + 4}" y="{top + 16}">Stream {stream}, {name}: {summary(lane)}{steps}</text>')
        lines += bars(lane, top + TITLE, scale)
    lines += axis(length, scale, bottom)
    for start in streams.steps:
        x = MARGIN + start * scale
        lines.append(f'<path stroke="{GREY}" stroke-dasharray="4 3" d="M{x:.1f} {TITLE}V{bottom}"/>')
    return "\n".join([*lines, "</svg>", ""])


def summary(lane: Lane) -> str:
    """Return what a stream did, such as "compute 360 ms, copies 3.1 ms"."""
    times = {kind: total(merged(spans)) for kind, spans in lane.items()}
    return ", ".join(
        f'<tspan fill="{COLOURS[kind]}">\u25a0</tspan> {kind} {time:.3g} ms' for kind, time in times.items() if time
    )


def bars(lane: Lane, top: float, scale: float) -> list[str]:
    """Return one path per kind, with a rectangle for each span. Copies are drawn last and at least a pixel wide."""
    found = []
    for kind, spans in lane.items():
        parts = [
            f"M{MARGIN + start * scale:.1f} {top}h{max(1.0, (end - start) * scale):.1f}v{LANE}"
            f"H{MARGIN + start * scale:.1f}z"
            for start, end in merged(spans, 1 / scale)
        ]
        if parts:
            found.append(f'<path fill="{COLOURS[kind]}" d="{"".join(parts)}"/>')
    return found


def axis(length: float, scale: float, top: float) -> list[str]:
    """Return the time axis, in milliseconds."""
    every = next(distance for distance in tick_distances() if length / distance <= TICKS)
    found = [f'<path stroke="{GREY}" d="M{MARGIN} {top}H{WIDTH - MARGIN}"/>']
    for number in range(int(length / every) + 1):
        x, time = MARGIN + number * every * scale, f"{number * every:g}"
        found.append(f'<path stroke="{GREY}" d="M{x:.1f} {top}v5"/>')
        anchor = "middle" if number else "start"
        found.append(f'<text x="{x:.1f}" y="{top + 20}" text-anchor="{anchor}">{time}{"" if number else " ms"}</text>')
    return found


def tick_distances() -> Iterator[float]:
    """Yield 0.01, 0.02, 0.05, 0.1 and so on."""
    exponent = -2
    while True:
        yield from (digit * 10.0**exponent for digit in (1, 2, 5))
        exponent += 1


def merged(spans: list[Span], gap: float = 0.0) -> list[Span]:
    """Join spans that overlap, or are at most `gap` apart; return them in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def total(spans: list[Span]) -> float:
    """Return the summed length of spans that do not overlap."""
    return sum(end - start for start, end in spans)
