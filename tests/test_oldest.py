"""What `make test-oldest` installs is the oldest of everything that pyproject.toml allows."""

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
# prep-pillow is another way to a PIL, which goes back further than pillow-simd, and not into the same environment.
EXTRAS = ("prep", "parquet", "demo", "test", "dev")
ABOVE = {"torch"}  # constraints-oldest.txt says why


def floors() -> dict[str, Version]:
    """The lowest version allowed of each distribution, where one is named, on the oldest-but-tried Python 3.11."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    needs = [Requirement(line) for line in lines]
    here = [need for need in needs if need.marker is None or need.marker.evaluate({"python_version": "3.11"})]
    lowest = {canonicalize_name(n.name): [s.version for s in n.specifier if s.operator == ">="] for n in here}
    return {name: Version(versions[0]) for name, versions in lowest.items() if versions}


def pins() -> dict[str, Version]:
    """Of each distribution in constraints-oldest.txt the version."""
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    return {
        canonicalize_name(n): Version(v) for n, v in (line.split("==") for line in lines if not line.startswith("#"))
    }


def test_the_oldest_of_everything_is_what_is_tried() -> None:
    allowed, tried = floors(), pins()
    assert set(allowed) > {"numpy", "h5py", "torch", "pyarrow", "pytest", "simplejpeg"}
    # 11.0.0.post0 is the first release of pillow-simd 11.
    above = {
        name for name, floor in allowed.items() if Version(tried[name].base_version) != Version(floor.base_version)
    }
    assert above == ABOVE & set(allowed)
    assert all(tried[name] > allowed[name] for name in above)


def test_why_a_version_is_above_its_floor_is_said() -> None:
    head = [line for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if line.startswith("# - ")]
    assert {line.removeprefix("# - ").partition(":")[0] for line in head} == ABOVE
