"""Draw six bars from the results of a run: `python -m bench.peers.harness.plot FACTS.json OUT.svg`.

Loading without and with augmentation is drawn for this project, the fastest other way, and a DataLoader with Pillow.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tools.svg import document, label

WIDTH, LEFT, MOST = 620, 200, 310  # of the image, of the names, and of the longest bar, in pixels
PILLOW = "DataLoader, JPEG files by Pillow"
PANELS = {"load": ("loads", "Loading"), "augmented": ("augmented", "Loading with crop, flip and normalization")}


def chosen(rows: dict[str, Any], ours: str) -> dict[str, list[float]]:
    """Return the rates of this project, of the fastest other way, and of the DataLoader with Pillow, by their names."""
    others = sorted(rows.keys() - {ours}, key=lambda name: -statistics.median(rows[name]["images_per_s"]))
    names = {"decodeonce": ours}
    for name in others:
        if name.startswith(PILLOW):
            names["DataLoader with Pillow"] = name
        elif len(names) == 1:
            names[name.partition(",")[0]] = name
    return {shown: rows[name]["images_per_s"] for shown, name in names.items()}


def chart(facts: dict[str, Any]) -> str:
    """Return an SVG document: a bar for each median, and a thin line from the slowest to the fastest repeat."""
    body, y = [], 8
    for key, (part, title) in PANELS.items():
        rates = chosen(facts[part]["rows"], facts["ours"][key])
        scale = MOST / max(map(max, rates.values()))
        y += 24
        body.append(label(16, y, f"{title}, images/s", "text head"))
        for name, found in rates.items():
            y += 28
            median, kind = statistics.median(found), "ours" if name == "decodeonce" else "other"
            least, most = min(found) * scale, max(found) * scale
            body += [
                label(LEFT - 10, y, name, text_anchor="end"),
                f'<rect class="{kind}" x="{LEFT}" y="{y - 15}" width="{median * scale:.1f}" height="20" rx="2"/>',
                f'<rect class="soft" x="{LEFT + least:.1f}" y="{y - 6}" width="{most - least:.1f}" height="2"/>',
                label(LEFT + most + 8, y, f"{median:,.0f}"),
            ]
        y += 20
    note = f"{facts['size']}x{facts['size']} images in memory, {facts['workers']} workers or threads, a CPU"
    body.append(label(16, y + 14, f"{note}; medians of {facts['repeats']} repeats", "soft small"))
    return document(WIDTH, y + 30, "Images per second of decodeonce and of other loaders", body)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(chart(json.loads(Path(sys.argv[1]).read_text())))
