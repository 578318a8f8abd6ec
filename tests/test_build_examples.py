"""The examples that build a store with Ray and with Dask make the store that `prep build` makes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.builds import digests
from tests.command import prep
from tests.images import make_tree
from tests.libraries import library

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("name", "package"), [("build_with_ray", "ray"), ("build_with_dask", "dask.distributed")])
def test_example_builds_the_same_store(name: str, package: str, tmp_path: Path) -> None:
    library(package)
    tree = make_tree(tmp_path / "imagenet")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tree), str(tmp_path / "example.store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    for task in range(2):
        assert f"task {task} of 2" in done.stdout + done.stderr
    prep("build", "imagenet", "imagenet", "other.store", cwd=tmp_path)
    assert digests(tmp_path / "example.store") == digests(tmp_path / "other.store")
