"""The rooms of the code, and which of them imports which; docs/architecture.md draws them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "decodeonce"
# A new arrow needs a reason: less is what makes a room readable by itself.
ROOMS = {
    "prep.entry": set[str](),
    "prep.recipe": set[str](),
    "prep.processes": set[str](),
    "prep.jobs": set[str](),
    "prep.pixels": {"prep.entry", "prep.recipe"},
    "prep.sources": {"prep.entry", "prep.recipe", "prep.pixels", "prep.processes"},
    "prep.build": {"prep.entry", "prep.recipe", "prep.pixels", "prep.sources", "prep.processes"},
    "prep.convert": {"prep.entry", "prep.recipe", "prep.pixels", "prep.sources", "prep.build"},
    "prep.repair": {"prep.entry", "prep.recipe", "prep.pixels", "prep.sources", "prep.convert"},
    "prep.export": {"prep.entry", "prep.recipe", "prep.processes", "prep.build", "prep.convert"},
    "prep.sample": {"prep.processes"},
}
PARTS = {
    "store": {"errors", "lazy", "formatting", "host"},
    "loader": {"errors", "splitmix", "host", "launch", "store"},
    "prep": {"errors", "lazy", "formatting", "host", "splitmix", "store"},
    "cli": {"errors", "formatting", "host", "splitmix", "launch", "store", "prep", "loader"},
}


def imports() -> Iterator[tuple[str, str]]:
    """(importing module, imported module) of every import in the package."""
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("decodeonce."):
                found = str(node.module).removeprefix("decodeonce.")
                yield from (
                    (name, f"{found}.{a.name}" if f"{found}.{a.name}" in modules else found) for a in node.names
                )


def arrows(depth: int) -> dict[str, set[str]]:
    """Which rooms each imports, a room being the first `depth` parts of a module's name."""
    found: dict[str, set[str]] = {}
    for one, other in imports():
        ends = [".".join(name.split(".")[:depth]) for name in (one, other)]
        if ends[0] != ends[1]:
            found.setdefault(ends[0], set()).add(ends[1])
    return found


def test_the_rooms_of_prep_import_what_they_may_and_there_is_no_cycle() -> None:
    found = arrows(2)
    prep = {room: {other for other in found.get(room, ()) if other.startswith("prep")} for room in ROOMS}
    assert prep == ROOMS
    assert {room for room in found if room.startswith("prep.")} <= {*ROOMS, "prep.__init__"}
    assert list(TopologicalSorter(ROOMS).static_order())
    assert sum(map(len, ROOMS.values())) <= 35


def test_the_parts_of_the_package_import_what_they_may() -> None:
    found = arrows(1)
    assert {part: found[part] for part in PARTS} == PARTS
