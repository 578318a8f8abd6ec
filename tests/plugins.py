"""Packages that add sources, made available as an installation does."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from decodeonce.prep.sources.plugins import plugins

EXAMPLE = Path(__file__).parents[1] / "examples" / "lmdb_source"


def write_package(folder: Path, name: str, entry_points: dict[str, str], code: str = "") -> None:
    """Write the files that an installed package has: its entry points, and a module of the same name."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{kind} = {value}\n" for kind, value in entry_points.items()]
    (info / "entry_points.txt").write_text(f"[decodeonce.sources]\n{''.join(lines)}")
    if code:
        (folder / f"{name}.py").write_text(code)


@contextmanager
def installed(*folders: Path) -> Iterator[None]:
    """Let this process, and those that it starts, find the packages in these folders."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in folders:
            patch.syspath_prepend(folder)
        plugins.cache_clear()
        try:
            yield
        finally:
            plugins.cache_clear()


@contextmanager
def example_installed(folder: Path) -> Iterator[None]:
    """Make the package of examples/lmdb_source available, with entry points in `folder`."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    write_package(folder, project["name"].replace("-", "_"), project["entry-points"]["decodeonce.sources"])
    with installed(folder, EXAMPLE):
        yield
