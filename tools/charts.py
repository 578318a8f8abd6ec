"""Draw charts of docs/images from tables of the pages: `python -m tools.charts`. A test fails if one is out of date."""

from __future__ import annotations

import math
import re
from pathlib import Path

from tools.svg import document, label

ROOT = Path(__file__).resolve().parent.parent
DOCS, IMAGES = ROOT / "docs", ROOT / "docs" / "images"
WIDTH, LEFT, LINE = 720, 275, 24  # of the charts, of the names in them, and between two lines, in pixels


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table below a line of its header that begins like this."""
    table = (DOCS / page).read_text().partition(f"\n| {heading}")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]


def loaders() -> str:
    """Draw the rate of each loader as a dot, with the range of the repeats, on a scale whose steps are factors."""
    smallest, room = math.log10(0.005), WIDTH - LEFT - 30
    body, y = [], 34
    body.append(label(16, y, "images/s as a share of decodeonce's: gray without, red with augmentation", "text head"))

    def place(ratio: float) -> float:
        return LEFT + room * (1 - math.log10(ratio) / smallest)

    found = rows("reference/benchmarks.md", "2,560 images, warm")
    bottom = y + 16 + LINE * len(found)
    for ratio in (0.01, 0.1, 1):
        body.append(f'<rect class="soft" x="{place(ratio):.1f}" y="{y + 12}" width="1" height="{bottom - y}"/>')
        body.append(label(place(ratio), bottom + 28, f"{ratio:g}", "soft small", text_anchor="middle"))
    for name, _, loading, _, *augmented in found:
        y += LINE
        body.append(label(LEFT - 10, y + 9, name.replace("**", ""), text_anchor="end"))
        for cell, kind, height in ((loading, "other", 0), (augmented[1] if augmented[1:] else "", "ours", 8)):
            if numbers := [float(number) for number in re.findall(r"[\d.]+", cell)]:
                ratio, least, most = numbers if numbers[1:] else numbers * 3
                x, end = place(least), place(most)
                body.append(f'<rect class="{kind}" x="{x:.1f}" y="{y + height - 1}" width="{end - x:.1f}" height="2"/>')
                body.append(f'<circle class="{kind}" cx="{place(ratio):.1f}" cy="{y + height}" r="4"/>')
    return document(WIDTH, bottom + 40, "Rates of loaders as a share of decodeonce's", body)


def sizes() -> str:
    """Draw the GB of ImageNet for each --size as bars, and the share of random crops that are enlarged as text."""
    enlarged = {size: share for size, share, *_ in rows("how-to/size-and-fit.md", "rows of |")}
    total = {row[0].partition(" ")[0]: (row[2], row[5]) for row in rows("how-to/size-and-fit.md", "`--size` |")}
    shown = [size for size in total if size in enlarged]
    scale = (WIDTH - 390) / float(total[shown[-1]][0].partition(" ")[0].replace(",", ""))
    body, y = [label(16, 34, "ImageNet train: RGB, and in half the bytes with --pixels yuv420", "text head")], 40
    for size in shown:
        y += 50
        body.append(label(16, y - 8, f"--size {size}", "text mono small"))
        for text, kind, line in zip(total[size], ("other", "ours"), (0, 18), strict=True):
            width = float(text.partition(" ")[0].replace(",", "")) * scale
            body.append(f'<rect class="{kind}" x="120" y="{y - 26 + line}" width="{width:.1f}" height="15" rx="2"/>')
            body.append(label(126 + width, y - 14 + line, text, "text small"))
        body.append(label(WIDTH - 16, y - 8, f"{enlarged[size]} of crops enlarged", "soft small", text_anchor="end"))
    return document(
        WIDTH, y + 20, "Bytes of ImageNet, and share of random crops enlarged to 224 pixels, by --size", body
    )


CHARTS = {"loaders.svg": loaders, "sizes.svg": sizes}


def main() -> None:
    for name, draw in CHARTS.items():
        (IMAGES / name).write_text(draw())


if __name__ == "__main__":
    main()
