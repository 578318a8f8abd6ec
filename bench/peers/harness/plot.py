"""A run's figures as a picture; runs where matplotlib is: `python -m bench.peers.harness.plot FACTS.json OUT.svg`.

The ground is transparent and all text a grey that reads on white and on black.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

REQUIREMENTS = """
    matplotlib==3.11.2
    contourpy==1.3.3
    cycler==0.12.1
    fonttools==4.68.0
    kiwisolver==1.5.1
    numpy==2.4.6
    packaging==26.3
    pillow==12.1.1
    pyparsing==3.3.3
    python-dateutil==2.9.0.post0
    six==1.17.0
"""
GREY, OURS, BUILT, DECODED = "#7a7a7a", "#d9480f", "#3b82c4", "#8a63d2"


def draw(axes: Any, found: dict[str, Any], title: str, ours: str) -> None:
    """A line for each, its median as a dot and the repeats as a bar behind it, the first on top."""
    for place, (name, one) in enumerate(reversed(found.items())):
        rates = one["images_per_s"]
        middle = statistics.median(rates)
        colour = OURS if name == ours else DECODED if one.get("decodes") else BUILT
        axes.plot(
            [min(rates), max(rates)], [place, place], color=colour, linewidth=6, alpha=0.35, solid_capstyle="round"
        )
        axes.plot([middle], [place], "o", color=colour, markersize=8)
        axes.annotate(
            f"{middle:,.0f}", (max(rates), place), (8, 0), textcoords="offset points", va="center", color=colour
        )
    axes.set_yticks(range(len(found)), list(reversed(found)))
    axes.set_ylim(-0.6, len(found) - 0.4)
    axes.margins(x=0.18)
    axes.set_title(title, loc="left", color=GREY, fontsize=11, fontweight="bold")
    axes.grid(axis="x", color=GREY, alpha=0.25)
    axes.tick_params(which="both", colors=GREY, length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def plot(facts: dict[str, Any], out: Path) -> None:
    """Three panels, one below the other."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    pyplot.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "peers", "font.family": "sans-serif", "font.size": 10}
    )
    builds = facts["builds"][0]
    panels = {
        "build": (builds, f"Building {builds['images']:,} images at {facts['size']}x{facts['size']}, images/s"),
        "load": (facts["loads"], "Loading, images/s, log scale (purple: decoded in the loop)"),
        "augmented": (facts["augmented"], "Loading with crop, flip and normalization, images/s"),
    }
    heights = [len(found["rows"]) + 1 for found, _ in panels.values()]
    figure, all_axes = pyplot.subplots(
        3, 1, figsize=(9, 1.4 + 0.32 * sum(heights)), gridspec_kw={"height_ratios": heights}, layout="constrained"
    )
    for axes, (key, (found, title)) in zip(all_axes, panels.items(), strict=True):
        axes.set_xscale("log" if key == "load" else "linear")
        draw(axes, found["rows"], title, facts["ours"][key])
        if key != "load":
            axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
