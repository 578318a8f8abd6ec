"""`make test-oldest` installs the oldest Python and packages that pyproject.toml allows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import lock
from tools.setup_env import SetupError
from tools.setup_oldest import find_python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
# prep-pillow is left out: it has another PIL, which cannot be in the same environment as pillow-simd.
EXTRAS = ("prep", "parquet", "demo", "test", "dev")
OLDEST = lock.declared()[0]


def lowest_versions() -> dict[str, Version]:
    """Return the lowest allowed version of each distribution that has one, for the oldest Python."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    needs = [Requirement(line) for line in lines]
    here = [need for need in needs if need.marker is None or need.marker.evaluate({"python_version": OLDEST})]
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
    assert [
        name for name, version in lowest.items() if Version(pinned[name].base_version) != Version(version.base_version)
    ] == []


def test_oldest_python_is_the_lowest_that_is_allowed() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(f">={OLDEST},<3.15")
    assert f"on Python {OLDEST}." in (ROOT / "constraints-oldest.txt").read_text()


def test_missing_python_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SetupError, match=r"^the oldest versions need Python 3\.10, and python3\.10 is not installed"):
        find_python("3.10")
    python = tmp_path / ".pyenv" / "versions" / "3.10.9" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert find_python("3.10") == str(python)
