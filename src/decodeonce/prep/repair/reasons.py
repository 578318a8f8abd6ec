"""Tell why rows are still bad: one sentence for each reason, however many rows and pictures share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from decodeonce.formatting import counted
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.store.manifest import REBUILD, Manifest
from decodeonce.store.part import rows_text
from decodeonce.store.verify import row_ranges

FROM_COPY = "restore it from a copy of the store (one given as --from will do)"
COPY = f"{FROM_COPY}, or {REBUILD}"
MOST_RANGES = 20  # of rows that a sentence names; `prep verify --json` names them all


class Reason(NamedTuple):
    """Why a row cannot be repaired, and the name of its picture if that matters."""

    text: str
    name: str = ""


BAD_AGAIN = Reason("damaged again after it was written: check the disk, then run this again")


def row_sentences(root: Path, rows: list[int], reasons: Mapping[int, Reason]) -> Iterator[str]:
    """Yield a sentence for each reason, with its rows and the first of its pictures."""
    by_text: dict[str, list[int]] = {}
    for row in rows:
        by_text.setdefault(reasons.get(row, BAD_AGAIN).text, []).append(row)
    for text, some in by_text.items():
        ranges = row_ranges(some)
        told = ", ".join(rows_text(range(first, last + 1)) for first, last in ranges[:MOST_RANGES])
        if len(ranges) > MOST_RANGES:
            told += f" and {counted(len(ranges) - MOST_RANGES, 'more run', 'more runs')} of rows"
        names = list(dict.fromkeys(reasons[row].name for row in some if row in reasons and reasons[row].name))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{root}: {told}: {f'{names[0]}{more}: ' if names else ''}{text}"


def other_versions(manifest: Manifest) -> str:
    """Tell which libraries to install if others than those here made the store; empty if they are the same."""
    written = manifest.recipe.get("decoders")
    if not isinstance(written, dict):
        return ""
    here = decoder_versions(manifest.container)
    missing = [f"{name} {version}" for name, version in written.items() if here.get(name) != version]
    instead = [f"{name} {version}" for name, version in here.items() if written.get(name) != version]
    return f"install {', '.join(missing)}, which made it (here: {', '.join(instead)})" if missing else ""
