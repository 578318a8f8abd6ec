"""The accelerator of these tests, and the larger store that they load. Without an accelerator all of them are skipped.

Names of torch.accelerator are used where they suffice. Tests that need more of CUDA, such as a kernel that only spins,
use the fixture `cuda`. It includes ROCm, where torch has the same names
(https://docs.pytorch.org/docs/stable/notes/hip.html).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from decodeonce.loader.delivery import find_device
from tests.stores import make_store, random_images

ROWS = 1024


@pytest.fixture
def device() -> Iterator[torch.device]:
    """The accelerator with its index. It is idle before and after a test, so that its errors belong to that test."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        pytest.skip(f"needs an accelerator; torch {torch.__version__} finds none here")
    torch.accelerator.synchronize()
    yield find_device(found)
    torch.accelerator.synchronize()


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The same, if it is CUDA or ROCm."""
    if device.type != "cuda":
        pytest.skip(f"needs CUDA or ROCm; the accelerator here is {device.type}")
    return device


@pytest.fixture(scope="session")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 1,024 rows of 64x64x3: 1.6 MB for a batch of 128, and 13 MB for all rows."""
    images = random_images(ROWS, shape=(64, 64, 3))
    return make_store(tmp_path_factory.mktemp("stores") / "larger", images, shard_rows=300)
