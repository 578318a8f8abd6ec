"""bench/streams.py: what streams of a device did is read from a trace of torch.profiler, and drawn."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from bench.streams import draw, hidden_share, read_streams

SVG = "{http://www.w3.org/2000/svg}"


def event(cat: str, stream: int, start: float, length: float) -> dict[str, Any]:
    """Return an event of a device as torch.profiler writes it, with times in microseconds."""
    args = {"device": 0, "context": 1, "stream": stream, "correlation": 7}
    return {
        "ph": "X",
        "cat": cat,
        "name": "a <name>",
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": length,
        "args": args,
    }


def made_up_trace() -> dict[str, Any]:
    """Return two steps of 2 ms with a pause of 1 ms, and a copy of 1 ms in each; half of the second is in the pause."""
    kernels = [event("kernel", 7, 5e6 + step * 3000 + index * 200, 200) for step in (0, 1) for index in range(10)]
    copies = [event("gpu_memcpy", 20, 5e6 + start, 1000) for start in (500, 2500)]
    others = [
        event("gpu_memset", 7, 5e6 + 100, 50),
        {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "pid": 1, "tid": 1, "ts": 4e6, "dur": 9e6},
        *(
            {"ph": "X", "cat": "gpu_user_annotation", "name": name, "pid": 0, "tid": 7, "ts": 5e6 + start, "dur": 2000}
            for name, start in (("ProfilerStep#4", 0), ("ProfilerStep#5", 3000), ("decodeonce.send", 500))
        ),
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
    ]
    return {"schemaVersion": 1, "traceEvents": [*copies, *kernels, *others]}


def test_lanes_are_streams_and_the_consumer_comes_first() -> None:
    streams = read_streams(made_up_trace())
    assert list(streams.lanes) == [7, 20]
    assert len(streams.lanes[7]["compute"]) == 21
    assert streams.lanes[20] == {"compute": [], "copies": [(0.5, 1.5), (2.5, 3.5)]}
    assert streams.steps == [0.0, 3.0]


def test_hidden_share_is_the_time_of_copies_under_compute() -> None:
    assert hidden_share(read_streams(made_up_trace())) == pytest.approx(0.75)


def test_image_has_lane_per_stream_and_time_axis(tmp_path: Path) -> None:
    image = tmp_path / "trace.svg"
    image.write_text(draw(read_streams(json.loads(json.dumps(made_up_trace())))), encoding="utf-8")
    root = ET.parse(image).getroot()
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert texts[:2] == [
        "Stream 7, the consumer's stream: \u25a0 compute 4 ms; dashed lines: starts of steps",
        "Stream 20, a side stream: \u25a0 copies 2 ms",
    ]
    assert texts[2:] == ["0 ms", "1", "2", "3", "4", "5"]
    steps, copies = (path for path in root.iter(f"{SVG}path") if path.get("fill"))
    assert str(steps.get("d")).count("M") == str(copies.get("d")).count("M") == 2  # kernels without a gap are joined
    assert len([path for path in root.iter(f"{SVG}path") if path.get("stroke-dasharray")]) == 2  # starts of steps
    assert "rect" not in image.read_text()  # no background


def test_trace_without_device_is_refused() -> None:
    with pytest.raises(ValueError, match="no work of a device"):
        read_streams({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1}]})
