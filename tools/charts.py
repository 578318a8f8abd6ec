"""Draw charts of docs/images, mostly from tables of the pages: `python -m tools.charts`.

A test fails if one is out of date.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from decodeonce.loader.readers import kept_share
from tools.svg import document, label

ROOT = Path(__file__).resolve().parent.parent
DOCS, IMAGES = ROOT / "docs", ROOT / "docs" / "images"
WIDTH, LEFT, LINE = 720, 275, 24  # of the charts, of the names in them, and between two lines, in pixels
NARROW = 440  # width of drawings whose words are readable on a phone
ARROW = (
    ".line { stroke: #8c959f; stroke-width: 2; fill: none } .box { fill: #8c959f; fill-opacity: 0.16; stroke: #8c959f }"
)


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
    total = {row[0].partition(" ")[0]: row[2:5] for row in rows("how-to/size-and-fit.md", "`--size` |")}
    shown = [size for size in total if size in enlarged]
    scale = (WIDTH - 390) / float(total[shown[-1]][0].partition(" ")[0].replace(",", ""))
    body, y = [label(16, 34, "ImageNet train: RGB, --pixels yuv420 and --pixels bc4", "text head")], 40
    for size in shown:
        y += 68
        body.append(label(16, y - 8, f"--size {size}", "text mono small"))
        for text, kind, line in zip(total[size], ("other", "ours", "ours"), (0, 18, 36), strict=True):
            width = float(text.partition(" ")[0].replace(",", "")) * scale
            body.append(f'<rect class="{kind}" x="120" y="{y - 44 + line}" width="{width:.1f}" height="15" rx="2"/>')
            body.append(label(126 + width, y - 32 + line, text, "text small"))
        body.append(label(WIDTH - 16, y - 8, f"{enlarged[size]} of crops enlarged", "soft small", text_anchor="end"))
    return document(
        WIDTH, y + 20, "Bytes of ImageNet, and share of random crops enlarged to 224 pixels, by --size", body
    )


def kept() -> str:
    """Draw the share of the rows that the direct reader keeps, for several sizes of the available memory."""
    left, room = 66, 170
    body = [
        label(16, 30, "Rows that stay in memory, by available memory", "text head"),
        label(16, 54, "Left: available memory, as a share of the store.", "soft"),
        label(16, 75, "Right: rows in memory; speed if the disk is the limit.", "soft"),
    ]
    y = 90
    for percent in (25, 50, 75, 100, 125):
        share = kept_share(100, percent)
        width = room * share
        body.append(label(left - 10, y + 16, f"{percent}%", text_anchor="end"))
        body.append(f'<rect class="other" x="{left}" y="{y}" width="{room}" height="22" rx="2"/>')
        body.append(f'<rect class="ours" x="{left}" y="{y}" width="{width:g}" height="22" rx="2"/>')
        body.append(
            label(
                left + room + 10,
                y + 16,
                f"{share:.0%}, {1 / (1 - share):.3g} times" if share < 1 else "100%, without reads",
            )
        )
        y += 32
    table = {row[0]: row[1:] for row in rows("reference/benchmarks.md", "4.5 GB, 1.41 times the memory")}
    [fast] = [row[2] for name, row in table.items() if "chosen by" in name]
    body.append(label(16, y + 18, "Measured, third epoch", "text head"))
    slow = table["all rows past the page cache"][2]
    body.append(label(16, y + 40, f"{slow} GB/s with no row in memory, {fast} with 47%"))
    return document(NARROW, y + 56, "Share of the rows that stay in memory, by available memory", body)


def jobs() -> str:
    """Draw the jobs of a build on a cluster: what starts after what, and what to do if one is killed."""
    left, width, middle = 16, 176, 104
    found = [
        ("plan", "1 process", ["Killed or failed:", "run submit.sh again."], "if it succeeded"),
        (
            "array",
            "--tasks 16",
            ["Killed: the next round or", "submit.sh decodes what is", "left. Blocks are kept."],
            "on Slurm, only if a task failed",
        ),
        ("array, round 2", "--rounds 2", ["Only unfinished blocks", "are decoded."], "when all have ended"),
        ("finish", "1 process", ["Killed, or blocks are left:", "run submit.sh again."], "if it succeeded"),
        ("train", "--then FILE", ["The examples resume from", "their last checkpoint."], ""),
    ]
    body, y = [label(left, 30, "Each job waits for the one above it", "text head")], 48
    for name, flag, words, after in found:
        if "array" in name:
            body.append(f'<rect class="box" x="{left}" y="{y}" width="{width}" height="78" rx="6"/>')
            for number in range(4):
                body.append(
                    f'<rect class="ours" x="{left + 14 + 39 * number}" y="{y + 54}" width="30" height="14" rx="2"/>'
                )
        else:
            body.append(f'<rect class="box" x="{left}" y="{y}" width="{width}" height="54" rx="6"/>')
        body.append(label(middle, y + 22, name, "text head", text_anchor="middle"))
        body.append(label(middle, y + 42, flag, "soft mono small", text_anchor="middle"))
        for number, line in enumerate(words):
            body.append(label(left + width + 18, y + 21 + 20 * number, line))
        y += 78 if "array" in name else 54
        if after:
            body.append(f'<path class="line" d="M{middle} {y + 2}v28m-6 -8l6 8 6 -8"/>')
            body.append(label(middle + 16, y + 21, after, "soft"))
            y += 32
    return document(NARROW, y + 16, "The jobs of a build, and what to do if one of them is killed", body, ARROW)


CHARTS = {"loaders.svg": loaders, "sizes.svg": sizes, "kept.svg": kept, "jobs.svg": jobs}


def main() -> None:
    for name, draw in CHARTS.items():
        (IMAGES / name).write_text(draw())


if __name__ == "__main__":
    main()
