"""The section on what was compared with what was written."""

from __future__ import annotations

from decodeonce.cli.report.blocks import paragraph, section, table
from decodeonce.cli.report.facts import SHOWN, Facts
from decodeonce.cli.report.markup import Markup, element
from decodeonce.cli.report.words import count
from decodeonce.formatting import counted
from decodeonce.store.part import rows_text
from decodeonce.store.verify import row_ranges

RUNS = 20  # of damaged rows


def checks(facts: Facts) -> Markup:
    """What was compared with what was written, and what came of it."""
    manifest, rows = facts.store.manifest, facts.rows
    shards = {shard.file for shard in manifest.shards}
    lines = [
        ["store.json", "as it was written: its digest is right", ""],
        ["shards", *_files(facts, sorted(shards), "size and head of each")],
        ["small files", *_files(facts, sorted(manifest.files), "size and digest of each")],
        ["rows", *_rows(facts)],
    ]
    told = "This page is of what was read for it. "
    whole = not rows.trouble and rows.checked == len(facts.store.rows)
    told += "All that is here was read." if whole else "prep verify reads all that is here."
    if len(facts.store.rows) < manifest.count:
        told += f" It is a staged part, which holds {rows_text(facts.store.rows)} of {count(manifest.count)}."
    parts = [paragraph(told), table("What was checked", ("what", "found", "how"), lines)]
    if rows.damaged:
        runs = [rows_text(range(first, last + 1)) for first, last in row_ranges(rows.damaged)]
        left = f" and {counted(len(runs) - RUNS, 'more run', 'more runs')} of rows" if len(runs) > RUNS else ""
        damaged = element("strong", f"Damaged: {', '.join(runs[:RUNS])}{left}.", class_="bad")
        parts.append(paragraph(damaged, " Damaged rows are counted in no histogram; prep repair mends them."))
    return section("checks", "Checks", *parts)


def _files(facts: Facts, names: list[str], how: str) -> list[str]:
    bad = [name for name in names if name in facts.problems]
    if bad:
        return [element("strong", f"damaged: {', '.join(bad)}", class_="bad"), f"{how}; prep repair mends them"]
    return [f"all {count(len(names))} as they were written" if len(names) > 1 else "as it was written", how]


def _rows(facts: Facts) -> list[str]:
    rows, held = facts.rows, len(facts.store.rows)
    if rows.trouble:
        return [element("strong", "not checked", class_="bad"), "checksums.npy, by which they are checked, is damaged"]
    if rows.checked == held:
        how = f"checksum of all {count(held)}"
    else:
        odd = ", and those of odd pictures above" if facts.sizes and facts.sizes.rows else ""
        which = f"{count(rows.sample)} evenly spaced, the first {SHOWN}{odd}"
        how = f"checksum of {count(rows.checked)} of {count(held)}: {which}"
    if rows.damaged:
        return [element("strong", f"{count(len(rows.damaged))} damaged", class_="bad"), how]
    which = "all" if rows.checked == held else "those that were read"
    return [f"{which} as they were written", how]
