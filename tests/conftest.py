"""Options of every test run."""

from __future__ import annotations

from collections import Counter

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many crash points were tried, by kind (tests/crash)."""
    tried = Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                tried.update(dict(report.user_properties).get("tried", {}))
    if tried:
        terminalreporter.section(f"{sum(tried.values())} crash points tried")
        for kind, number in sorted(tried.items()):
            terminalreporter.line(f"{number:6} {kind}")
