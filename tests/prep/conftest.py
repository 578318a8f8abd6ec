"""Let tests share the process that reads Parquet files: it is started again whenever a variable changes."""

import os

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # pytest changes it for each test


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    os.environ.pop("PYTEST_CURRENT_TEST", None)
