"""The facts of a run as Markdown."""

from __future__ import annotations

import statistics
from typing import Any


def ratio(found: dict[str, Any], ours: dict[str, Any]) -> float:
    """A rate beside this project's, the median of those taken repeat by repeat."""
    pairs = zip(found["pictures_per_s"], ours["pictures_per_s"], strict=True)
    return float(statistics.median(theirs / our for theirs, our in pairs))


def by_rate(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """The fastest first."""
    return sorted(found.items(), key=lambda item: -statistics.median(item[1]["pictures_per_s"]))


def build_table(facts: dict[str, Any]) -> list[str]:
    """A line for each that builds."""
    ours = facts["builds"][facts["ours"]["build"]]
    lines = ["| building | decodes with | pictures/s | of decodeonce | MB |", "|---|---|---|---|---|"]
    for name, found in by_rate(facts["builds"]):
        rate = statistics.median(found["pictures_per_s"])
        lines.append(
            f"| {name} | {found['decoder']} | {rate:,.0f} | {ratio(found, ours):.2f} | {found['bytes'] / 1e6:,.0f} |"
        )
    return lines


def load_table(facts: dict[str, Any]) -> list[str]:
    """A line for each arm."""
    ours = facts["loads"][facts["ours"]["load"]]
    lines = [
        "| loading | decodes in the loop | pictures/s | of decodeonce | first batch, ms | a later epoch's, ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in by_rate(facts["loads"]):
        rate, start = (statistics.median(found[key]) for key in ("pictures_per_s", "epoch_start_s"))
        share, decodes = ratio(found, ours), "yes" if found["decodes"] else ""
        times = f"{found['first_batch_s'] * 1e3:,.0f} | {start * 1e3:,.0f}"
        lines.append(f"| {name} | {decodes} | {rate:,.0f} | {share:.{2 if share >= 0.1 else 3}f} | {times} |")
    return lines


def markdown(facts: dict[str, Any]) -> str:
    """Both tables, what ran in which version, and what did not run."""
    head = (
        f"{facts['pictures']:,} pictures of {facts['jpeg_bytes'] / facts['pictures'] / 1e3:.0f} KB, "
        f"{facts['size']}x{facts['size']}, batches of {facts['batch_size']}, {facts['workers']} workers or threads "
        f"each, medians of {facts['repeats']} interleaved repeats, load {facts['load_average']:.1f} when it began."
    )
    lines = [head, "", *build_table(facts), "", *load_table(facts), "", "Versions:"]
    for name, found in by_rate(facts["loads"]):
        lines.append(f"- {name}: {', '.join(f'{package} {version}' for package, version in found['versions'].items())}")
    left_out = [f"- {name}: {why}" for name, why in facts["missing"].items()]
    return "\n".join([*lines, *(["", "Left out:", *left_out] if left_out else [])])
