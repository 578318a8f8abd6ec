"""Format the results of a run as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from bench.conditions import heading, ratio, ratio_text


def build_table(found: dict[str, Any], ours: str) -> list[str]:
    """Return a row per way to build, and a row per peer that cannot use this project's decoder."""
    rows = found["rows"]
    lines = [
        f"{found['images']:,} images of {found['jpeg_bytes'] / found['images'] / 1e3:.0f} KB:",
        "",
        "| building | decodes with | images/s | of decodeonce | MB |",
        "|---|---|---|---|---|",
    ]
    for name, one in rows.items():
        rate, share = statistics.median(one["images_per_s"]), ratio(one["images_per_s"], rows[ours]["images_per_s"])
        lines.append(f"| {name} | {one['decoder']} | {rate:,.0f} | {ratio_text(share)} | {one['bytes'] / 1e6:,.0f} |")
    lines += [f"| {name}, same decoder | not possible: {why} | | | |" for name, why in found["own_decoder"].items()]
    return lines


def load_table(found: dict[str, Any], ours: str, title: str) -> list[str]:
    """Return a row per arm."""
    rows = found["rows"]
    lines = [
        f"| {title} | decodes in the loop | images/s | of decodeonce | first batch, ms | a later epoch's, ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in rows.items():
        rate, start = (statistics.median(one[key]) for key in ("images_per_s", "epoch_start_s"))
        share, decodes = ratio(one["images_per_s"], rows[ours]["images_per_s"]), "yes" if one["decodes"] else ""
        label = f"{name} ({one['note']})" if one["note"] else name
        times = f"{one['first_batch_s'] * 1e3:,.0f} | {start * 1e3:,.0f}"
        lines.append(f"| {label} | {decodes} | {rate:,.0f} | {ratio_text(share)} | {times} |")
    return lines


def markdown(facts: dict[str, Any]) -> str:
    """Return all tables, the versions, and what was left out."""
    ours, loads, augmented = facts["ours"], facts["loads"], facts["augmented"]
    lines = [
        heading(facts["conditions"]),
        f"{facts['size']}x{facts['size']}, batches of {facts['batch_size']}, {facts['workers']} workers or threads "
        f"each, {facts['repeats']} interleaved repeats: medians, ratios of medians (smallest to largest of a repeat).",
        "",
    ]
    for found in facts["builds"]:
        lines += [*build_table(found, ours["build"]), ""]
    lines += [f"Loading {loads['images']:,} images, files in memory:", ""]
    lines += [*load_table(loads, ours["load"], "loading"), ""]
    lines += [*load_table(augmented, ours["augmented"], "loading, augmented"), "", "Versions:"]
    for name, one in {**loads["rows"], **augmented["rows"]}.items():
        lines.append(f"- {name}: {', '.join(f'{package} {version}' for package, version in one['versions'].items())}")
    left_out = [f"- {name}: {why}" for name, why in facts["missing"].items()]
    return "\n".join([*lines, *(["", "Left out:", *left_out] if left_out else [])])
