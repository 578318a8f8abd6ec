"""stage.json, the range of rows that a staged part holds, and the division of a store into such ranges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import StoreError
from decodeonce.store.manifest import Manifest
from decodeonce.store.regular_files import read_regular
from decodeonce.store.signed import MAX_BYTES, parse_signed, sign

FORMAT = "decodeonce-part"
VERSION = 1


@dataclass(frozen=True)
class Part:
    """Rows [first_row, first_row + rows) of the store whose manifest digest is `store`."""

    store: str
    first_row: int
    rows: int

    @property
    def held(self) -> range:
        """The rows that the part holds."""
        return range(self.first_row, self.first_row + self.rows)

    def to_bytes(self) -> bytes:
        """Return the bytes of stage.json, with its own digest."""
        facts = {"store": self.store, "first_row": self.first_row, "rows": self.rows}
        return sign({"format": FORMAT, "version": VERSION, **facts})


def part_rows(count: int, part: int, parts: int) -> range:
    """Return the rows of part number `part` when `count` rows are divided into `parts` ranges.

    A Loader with partition="range" gives rank `part` of `parts` the same rows. With g ranks on each of N nodes, the
    rows of rank r are within part r // g of N, so that every node can hold one part.

    Args:
        count: Number of rows of the store.
        part: Number of the part, from 0.
        parts: Number of parts.

    Returns:
        Consecutive row numbers. The sizes of two parts differ by at most 1.

    Example:
        >>> part_rows(10, 0, 4), part_rows(10, 1, 4)
        (range(0, 2), range(2, 5))
    """
    return range(part * count // parts, (part + 1) * count // parts)


def rows_text(rows: range) -> str:
    """Format rows for messages: "no rows", "row 5", "rows 5..9"."""
    if not rows:
        return "no rows"
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]}..{rows[-1]}"


def read_part(path: Path, manifest: Manifest) -> Part | None:
    """Read and check the stage.json of a part of this manifest's store. Return None if the file does not exist."""
    try:
        encoded = read_regular(path, most=MAX_BYTES)
    except FileNotFoundError:
        return None
    advice = f"remove {path.parent} and stage it again"
    facts = parse_signed(encoded, path, form=FORMAT, version=VERSION, advice=advice)
    try:
        return _from_facts(facts, manifest)
    except ValueError as error:
        raise StoreError(f"{path}: {error}; {advice}") from None


def _from_facts(facts: dict[str, object], manifest: Manifest) -> Part:
    if facts.get("store") != manifest.digest:
        raise ValueError(f"its store has digest {facts.get('store')!r}, but store.json has {manifest.digest!r}")
    first_row, rows = facts.get("first_row"), facts.get("rows")
    if type(first_row) is not int or type(rows) is not int or not 0 <= first_row < first_row + rows <= manifest.count:
        raise ValueError(f"{rows!r} rows from row {first_row!r}, expected a range within 0..{manifest.count - 1}")
    return Part(manifest.digest, first_row, rows)
