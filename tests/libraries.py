"""Import the libraries that tests compare with or use the Loader in."""

from typing import Any

import pytest

from tests.packages import NOT_DEV
from tools.libraries import load


def library(name: str) -> Any:
    """Import a module of a library of the extra `dev`; skip the test without `make env`."""
    try:
        return load(name)
    except ModuleNotFoundError:
        pytest.skip(NOT_DEV.format(name.partition(".")[0]))
