"""Why rows are bad still: a line for each kind of reason, however many rows and pictures there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from decodeonce.formatting import counted
from decodeonce.store.part import rows_text
from decodeonce.store.verify import row_ranges

NAMED = 20  # reasons, and runs of rows of each; `prep verify --json` names all rows


@dataclass(frozen=True)
class Reason:
    """Why a row cannot be made again: `kind` is the same for all that share it, `text` (default: kind) tells of one.

    `name` is that of its picture, where that matters; `absent`: nothing of that name is in the source.
    """

    kind: str
    name: str = ""
    text: str = ""
    absent: bool = False


AGAIN = Reason("not what was written, again: is the disk sound? run it once more")


def row_sentences(root: Path, rows: list[int], reasons: Mapping[int, Reason]) -> Iterator[str]:
    """A sentence for each kind of reason, with its rows and the first of its pictures, and one for what is left out."""
    by_kind: dict[str, list[int]] = {}
    for row in rows:
        by_kind.setdefault(reasons.get(row, AGAIN).kind, []).append(row)
    for some in islice(by_kind.values(), NAMED):
        ranges = row_ranges(some)
        told = ", ".join(rows_text(range(first, last + 1)) for first, last in ranges[:NAMED])
        if len(ranges) > NAMED:
            told += f" and {counted(len(ranges) - NAMED, 'more run', 'more runs')} of rows"
        yield f"{root}: {told}: {_told([reasons.get(row, AGAIN) for row in some])}"
    if left := list(islice(by_kind.values(), NAMED, None)):
        told = f"and {counted(sum(map(len, left)), 'more row')} for {counted(len(left), 'other reason')}"
        yield f"{root}: {told}; see to those above, and run this again"


def _told(reasons: list[Reason]) -> str:
    first, names = reasons[0], {reason.name for reason in reasons}
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{first.name}{more}{': ' if first.name else ''}{first.text or first.kind}"
