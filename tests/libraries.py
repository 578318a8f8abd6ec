"""Import the libraries of transforms that tests compare with or apply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.packages import NOT_DEV
from tools.libraries import load


def library(name: str) -> Any:
    """Import a module of torchvision, kornia or albumentations; skip the test without `make env`."""
    try:
        return load(name)
    except ModuleNotFoundError:
        pytest.skip(NOT_DEV.format(name.partition(".")[0]))
