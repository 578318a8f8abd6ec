"""Options of every test run."""

from __future__ import annotations

import pytest
from hypothesis import settings

# No deadline: on a busy machine with two cores an example's time says nothing.
settings.register_profile("decodeonce", deadline=None)
settings.load_profile("decodeonce")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On several processes the tests of a file stay together, for its fixtures' sake, and all of the one Slurm."""
    for item in items:
        together = "cluster" if "cluster" in item.path.parts else f"{item.path.parent.name}/{item.path.stem}"
        item.add_marker(pytest.mark.xdist_group(together))
