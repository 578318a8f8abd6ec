"""One small store for the tests that only read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.stores import make_store, random_images

COUNT = 60


@pytest.fixture(scope="session")
def images() -> NDArray[np.uint8]:
    return random_images(COUNT)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, images: NDArray[np.uint8]) -> Path:
    """60 rows in shards of 25, 25 and 10, label row % 3."""
    return make_store(tmp_path_factory.mktemp("stores") / "s", images, shard_rows=25)
