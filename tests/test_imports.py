"""Which parts and subpackages of decodeonce import which; docs/contribute/architecture.md describes them."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "decodeonce"
# Add an import only for a good reason: with fewer imports, a subpackage can be read without the others.
SUBPACKAGES = {
    "prep.listing": set[str](),
    "prep.recipe": set[str](),
    "prep.paths": set[str](),
    "prep.processes": set[str](),
    "prep.user_code": set[str](),
    "prep.jobs": {"prep.paths"},
    "prep.pixels": {"prep.listing", "prep.recipe", "prep.user_code"},
    "prep.sources": {"prep.listing", "prep.recipe", "prep.pixels", "prep.user_code"},
    "prep.building": {"prep.listing", "prep.recipe", "prep.paths", "prep.pixels", "prep.sources", "prep.processes"},
    "prep.convert": {"prep.listing", "prep.recipe", "prep.pixels", "prep.sources", "prep.building"},
    "prep.repair": {
        *("prep.listing", "prep.recipe", "prep.pixels", "prep.sources", "prep.convert"),
        "prep.user_code",
    },
}
PARTS = {
    "store": {"errors", "lazy", "formatting", "host", "remote"},
    "loader": {"errors", "host", "launch", "store"},
    "prep": {"errors", "formatting", "host", "launch", "remote", "store"},
    "cli": {"errors", "formatting", "host", "remote", "launch", "store", "prep"},
}
# Modules that only export the names of parts.
PUBLIC = {"__init__", "augment", "build", "sources"}
# Packages that a part must not import anywhere.
FORBIDDEN = {"store": {"torch", "PIL"}, "loader": {"PIL"}, "prep": {"torch"}}
# A transform that takes images of Pillow needs it; the import is in the branch for those.
EXCEPT = {("loader.augment.foreign", "PIL")}


@cache
def imports() -> set[tuple[str, str]]:
    """Return (importing module, imported module) for every import in the package."""
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    found = set[tuple[str, str]]()
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {(name, alias.name.removeprefix("decodeonce.")) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = ("." * node.level + (node.module or "")).removeprefix("decodeonce.")
                inner = [f"{source}.{alias.name}" for alias in node.names]
                found |= {(name, module if module in modules else source) for module in inner}
    return found


def imports_by_package(depth: int) -> dict[str, set[str]]:
    """Return what each package imports. A package is named by the first `depth` parts of a module's name."""
    found: dict[str, set[str]] = {}
    for names in imports():
        importing, imported = (".".join(name.split(".")[:depth]) for name in names)
        if importing != imported:
            found.setdefault(importing, set()).add(imported)
    return found


def test_subpackages_of_prep_have_only_allowed_imports() -> None:
    found = imports_by_package(2)
    prep = {name: {other for other in found.get(name, ()) if other.startswith("prep")} for name in SUBPACKAGES}
    assert prep == SUBPACKAGES
    assert {name for name in found if name.startswith("prep.")} <= {*SUBPACKAGES, "prep.__init__"}
    assert list(TopologicalSorter(SUBPACKAGES).static_order())  # raises CycleError
    assert sum(map(len, SUBPACKAGES.values())) <= 35


def test_package_parts_have_only_allowed_imports() -> None:
    found = imports_by_package(1)
    base = {path.stem for path in PACKAGE.glob("*.py")}
    assert {part: found[part] & (base | {*PARTS}) for part in PARTS} == PARTS
    assert {name for name in base - PUBLIC if found.get(name, set()) & {*PARTS}} == set()
    found_there = {pair for pair in imports() if pair[1].split(".")[0] in FORBIDDEN.get(pair[0].split(".")[0], ())}
    assert found_there == EXCEPT
