"""constraints-oldest.txt, which `make test-oldest` installs, pins the oldest versions that pyproject.toml allows."""

import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import lock

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# prep is left out: it has another PIL, which cannot be in the same environment as pillow-simd.
EXTRAS = ("prep-simd", "parquet", "remote", "demo", "test", "dev")
OLDEST = lock.declared()[0]


def test_pins_are_the_lowest_allowed_versions() -> None:
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra])]
    oldest = {"python_version": OLDEST}
    needs = [need for need in map(Requirement, lines) if need.marker is None or need.marker.evaluate(oldest)]
    lowest = {canonicalize_name(n.name): spec.version for n in needs for spec in n.specifier if spec.operator == ">="}
    assert set(lowest) > {"numpy", "h5py", "torch", "pyarrow", "pytest", "simplejpeg"}
    pins = [Requirement(line) for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if line[0] != "#"]
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    # Base versions are compared, because 11.0.0.post0 is the first release of pillow-simd 11.
    base = {name: Version(Version(pinned[name]).base_version) for name in lowest}
    assert base == {name: Version(Version(version).base_version) for name, version in lowest.items()}
    tested = {canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"]["test"]}
    assert tested - {"decodeonce"} <= set(pinned)  # otherwise pip downloads many releases until some fit


def test_oldest_python_is_the_lowest_that_is_allowed() -> None:
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(f">={OLDEST},<3.15")
    assert f"on Python {OLDEST}." in (ROOT / "constraints-oldest.txt").read_text()
