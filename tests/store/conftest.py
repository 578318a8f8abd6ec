"""A disk that fills up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    with disks.small_disk(tmp_path, "1m") as disk:
        yield disk
