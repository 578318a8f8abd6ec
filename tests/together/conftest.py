"""The images, the recipe and the expected store of these tests."""

from dataclasses import replace
from pathlib import Path

import pytest

from decodeonce.build import Recipe, WorkSettings, build, find_map
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.store import verify_store
from tests.images import make_tree, tree_bytes
from tests.together.processes import MAP, RECIPE


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 images in 3 classes. The second and third are rejects, so the last rows, 13 and 14, move to their places."""
    root = make_tree(tmp_path_factory.mktemp("concurrent"))
    for number in (1, 2):
        (root / f"train/n00000000/n00000000_{number}.JPEG").write_bytes(b"not an image")
    return root


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    """The recipe of `processes.FLAGS`."""
    return replace(RECIPE, map=find_map(MAP))


@pytest.fixture(scope="session")
def expected_files(tree: Path, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the store that a single process builds."""
    out = tmp_path_factory.mktemp("expected_files") / "store"
    build(open_imagenet(tree), out, recipe, WorkSettings(workers=1, max_bad="2"))
    assert verify_store(out).ok
    return tree_bytes(out)
