"""stage.json: which rows of a store a staged part of it holds; and which rows belong to which part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodeonce.errors import StoreError
from decodeonce.store.manifest import Manifest
from decodeonce.store.regular_files import read_regular
from decodeonce.store.signed import MAX_BYTES, parse_signed, sign

FORMAT = "decodeonce-part"
VERSION = 1


@dataclass(frozen=True)
class Part:
    """Rows [first_row, first_row + rows) of the store whose manifest has the digest `store`."""

    store: str
    first_row: int
    rows: int

    @property
    def held(self) -> range:
        """The rows of the store that are here."""
        return range(self.first_row, self.first_row + self.rows)

    def to_bytes(self) -> bytes:
        """stage.json for these facts, with its own digest."""
        facts = {"store": self.store, "first_row": self.first_row, "rows": self.rows}
        return sign({"format": FORMAT, "version": VERSION, **facts})


def part_rows(count: int, part: int, parts: int) -> range:
    """The rows of part number `part` of `parts` of `count` rows: those of that rank with partition="range".

    The ranks of one node lie within that node's part: rank r of g*N is within part r//g of N.
    """
    return range(part * count // parts, (part + 1) * count // parts)


def rows_text(rows: range) -> str:
    """These rows for people: "no rows", "row 5", "rows 5..9"."""
    if not rows:
        return "no rows"
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]}..{rows[-1]}"


def read_part(path: Path, manifest: Manifest) -> Part | None:
    """Read and check the stage.json of a part of this manifest's store; None if there is no such file."""
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


def _from_facts(facts: dict[str, Any], manifest: Manifest) -> Part:
    if facts.get("store") != manifest.digest:
        raise ValueError(f"it is for the store with digest {facts.get('store')!r}, this one has {manifest.digest!r}")
    first_row, rows = facts.get("first_row"), facts.get("rows")
    if type(first_row) is not int or type(rows) is not int or not 0 <= first_row < first_row + rows <= manifest.count:
        raise ValueError(f"{rows!r} rows from row {first_row!r}, expected some of {manifest.count}")
    return Part(manifest.digest, first_row, rows)
