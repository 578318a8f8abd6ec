"""The heading that every benchmark prints about its run, and the ratios of repeated measurements."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decodeonce.host import installed_version, usable_cores

PACKAGES = ("numpy", "torch", "simplejpeg", "pillow-simd", "pillow")


def conditions(images: int, pages: str) -> dict[str, Any]:
    """Return the machine, date, versions, number of images and `pages`, which is "cold", "warm" or both.

    Call it before you measure: it reads the load average.
    """
    versions = {name: installed_version(name) for name in PACKAGES}
    return {
        "machine": f"{_processor()}, {usable_cores()} cores, {_memory() / 1e9:.0f} GB of memory, {platform.release()}",
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load_average": os.getloadavg()[0],
        "versions": {"Python": platform.python_version()} | {name: text for name, text in versions.items() if text},
        "images": images,
        "pages": pages,
    }


def heading(facts: Mapping[str, Any]) -> str:
    """Format the result of conditions() as three lines of text."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    run = f"{facts['date']}, load {facts['load_average']:.1f}, {facts['images']:,} images, {facts['pages']}"
    return f"{facts['machine']}\n{versions}\n{run}\n"


def report(arm: str, repeat: int, run: Mapping[str, float]) -> None:
    """Print what an arm measured as a line of JSON on standard error, so that a run that is stopped keeps its figures.

    Args:
        arm: Name of the arm.
        repeat: Number of the repeat. The figures of repeat 0 are left out of the medians.
        run: The figures.
    """
    print(json.dumps({"arm": arm, "repeat": repeat, **run}), file=sys.stderr, flush=True)


def medians(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the median of each figure over the runs of each name."""
    return {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]} for name, found in runs.items()
    }


def ratio(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return the ratio of the medians, and the smallest and the largest ratio within one repeat."""
    repeats = [value / other for value, other in zip(values, base, strict=True)]
    return [statistics.median(values) / statistics.median(base), min(repeats), max(repeats)]


def ratio_text(found: Sequence[float]) -> str:
    """Format a ratio with its range: "0.72 (0.70 to 0.75)"."""
    digits = 2 if min(found) >= 0.1 else 3
    median, least, most = (f"{value:.{digits}f}" for value in found)
    return f"{median} ({least} to {most})"


def print_facts(facts: Mapping[str, Any], *, as_json: bool, width: int) -> None:
    """Print the conditions, then a line per number or ratio whose name has `width` characters; or one JSON object."""
    if as_json:
        print(json.dumps(facts))
        return
    print(heading(facts["conditions"]))
    for name, value in facts.items():
        if name != "conditions":
            text = ratio_text(value) if isinstance(value, list) else f"{value:.3f}" if value < 10 else f"{value:,.0f}"
            print(f"{name:{width}} {text}")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
