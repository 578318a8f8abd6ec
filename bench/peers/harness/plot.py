"""Draw eight bars from the results of a run: `python -m bench.peers.harness.plot FACTS.json OUT.svg`.

Loading without and with augmentation is drawn for the same tools: this project, the fastest other way of each part, and
a DataLoader with Pillow. The tables of the run have the ranges and all other tools.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tools.svg import document, label

WIDTH, LEFT, MOST = 620, 200, 290  # of the image, of the names, and of the longest bar, in pixels
PILLOW = "DataLoader with Pillow"
# What the names of a tool's rows begin with.
TOOLS = {
    "decodeonce": "decodeonce Loader",
    "FFCV, raw": "FFCV, raw",
    "TurboLoader, raw": "TurboLoader, TBL-RAW",
    PILLOW: "DataLoader, JPEG files by Pillow",
}
PANELS = {"loads": "Loading", "augmented": "Loading with crop, flip and normalization"}


def rates(rows: dict[str, Any]) -> dict[str, float]:
    """Return the median rate of each tool that was measured, by its name in the chart."""
    found = dict[str, float]()
    for tool, beginning in TOOLS.items():
        for name, row in rows.items():
            if name.startswith(beginning):
                found.setdefault(tool, statistics.median(row["images_per_s"]))
    return found


def chart(facts: dict[str, Any]) -> str:
    """Return an SVG document: a bar for each median, and how often ours is that of the DataLoader with Pillow."""
    body, y = [], 8
    for part, title in PANELS.items():
        found = rates(facts[part]["rows"])
        scale = MOST / max(found.values())
        y += 24
        body.append(label(16, y, f"{title}, images/s", "text head"))
        for name, rate in found.items():
            y += 28
            kind = "ours" if name == "decodeonce" else "other"
            body += [
                label(LEFT - 10, y, name, text_anchor="end"),
                f'<rect class="{kind}" x="{LEFT}" y="{y - 15}" width="{rate * scale:.1f}" height="20" rx="2"/>',
                label(LEFT + rate * scale + 8, y, f"{rate:,.0f}"),
            ]
            if kind == "ours" and PILLOW in found:
                ratio = f"{rate / found[PILLOW]:.3g} times {PILLOW}"
                body.append(f'<text x="{LEFT + 8}" y="{y}" style="fill: #ffffff; font-size: 13px">{ratio}</text>')
        y += 20
    note = f"{facts['size']}x{facts['size']} images in memory, {facts['workers']} workers or threads, a CPU"
    body.append(label(16, y + 14, f"{note}; medians of {facts['repeats']} repeats", "soft small"))
    return document(WIDTH, y + 30, "Images per second of decodeonce and of other loaders", body)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(chart(json.loads(Path(sys.argv[1]).read_text())))
