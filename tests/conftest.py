"""Options of every test run, and the images and the store that tests share and must not change."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from tests.images import make_tree
from tests.packages import is_fatal
from tests.stores import make_store, random_images

COUNT = 60

# `make test` sets these. A test that runs make itself must see a first make, not one below another.
for _name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(_name, None)

# There is no deadline, because times on a busy machine with two cores mean nothing. CI tries the same examples in every
# run, so that its result does not depend on chance. Other runs try new ones.
settings.register_profile("decodeonce", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("decodeonce")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that the file $PASSED_TESTS names, because an earlier run has passed them."""
    file = Path(os.environ.get("PASSED_TESTS", os.devnull))
    passed = set(file.read_text().splitlines()) if file.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add the tests that passed to the file $PASSED_TESTS, so that CI runs each test once."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "PASSED_TESTS" in os.environ and reporter is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["PASSED_TESTS"], "a") as file:
            file.writelines(f"{report.nodeid}\n" for report in reporter.stats.get("passed", ()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process, so that its fixtures are set up once.

    Tests that share one Slurm or one GlusterFS stay together as well. The mark xdist_group cannot be used for that:
    pytest 9.2 ignores what pytest-xdist 3.8 makes of it.
    """
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of_test
    return scheduler if config.getoption("dist") == "loadgroup" else None


def group_of_test(nodeid: str) -> str:
    """Return the name of a test's group: its file, or the folder whose files share one Slurm or one GlusterFS."""
    path = nodeid.partition("::")[0]
    return next((folder for folder in ("cluster", "netfs") if folder in path.split("/")), path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    return fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    return fail_if_skipped((yield))


def fail_if_skipped(report: Any) -> Any:
    """In CI, turn the report of a skipped test or module into a failure, unless it needs an accelerator."""
    if report.skipped and not hasattr(report, "wasxfail") and is_fatal(os.environ):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "accelerator" not in why:
            report.outcome, report.longrepr = "failed", f"in CI, tests must not be skipped ({why})"
    return report


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageNet tree of 15 valid images in 3 classes."""
    return make_tree(tmp_path_factory.mktemp("src"))


@pytest.fixture(scope="session")
def images() -> NDArray[np.uint8]:
    """The rows of `store`."""
    return random_images(COUNT)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, images: NDArray[np.uint8]) -> Path:
    """A store of 60 rows of 8x6x3 in shards of 25, 25 and 10 rows; labels are row % 3."""
    return make_store(tmp_path_factory.mktemp("stores") / "s", images, shard_rows=25)
