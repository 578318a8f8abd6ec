"""`make test-oldest` installs the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
# prep-pillow is left out: it has another PIL, which cannot be in the same environment as pillow-simd.
EXTRAS = ("prep", "parquet", "demo", "test", "dev")
ABOVE = {"torch"}  # constraints-oldest.txt has the reason


def lowest_versions() -> dict[str, Version]:
    """Return the lowest allowed version of each distribution that has one, for Python 3.11."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    needs = [Requirement(line) for line in lines]
    here = [need for need in needs if need.marker is None or need.marker.evaluate({"python_version": "3.11"})]
    lowest = {canonicalize_name(n.name): [s.version for s in n.specifier if s.operator == ">="] for n in here}
    return {name: Version(versions[0]) for name, versions in lowest.items() if versions}


def pins() -> dict[str, Version]:
    """Return the version of each distribution in constraints-oldest.txt."""
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    return {
        canonicalize_name(n): Version(v) for n, v in (line.split("==") for line in lines if not line.startswith("#"))
    }


def test_oldest_environment_pins_lowest_allowed_versions() -> None:
    lowest, pinned = lowest_versions(), pins()
    assert set(lowest) > {"numpy", "h5py", "torch", "pyarrow", "pytest", "simplejpeg"}
    # Base versions are compared, because 11.0.0.post0 is the first release of pillow-simd 11.
    above = {
        name for name, version in lowest.items() if Version(pinned[name].base_version) != Version(version.base_version)
    }
    assert above == ABOVE & set(lowest)
    assert all(pinned[name] > lowest[name] for name in above)


def test_pins_above_lowest_version_are_explained() -> None:
    head = [line for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if line.startswith("# - ")]
    assert {line.removeprefix("# - ").partition(":")[0] for line in head} == ABOVE
