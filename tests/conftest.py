"""Options of every test run, and the images and the store that tests share and must not change."""

import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from tests.images import make_tree
from tests.packages import is_fatal
from tests.stores import make_store, random_images

COUNT = 60
SAMPLED = 9  # tests of a file in a sample
SAMPLE_SECONDS = 420  # Later tests of a sample are not started. Each takes less than a minute.
STARTED = time.monotonic()
TIME_IS_OVER = "the time of the sample is over"
PROCESSOR_SECONDS = pytest.StashKey[float]()  # before a test
# pytest sets it for each test, and the process that reads Parquet files is started again if a variable has changed.
CURRENT_TEST = "PYTEST_CURRENT_TEST"
# The files that take longest, so that no worker starts one of them when the other has nothing left to do.
LONGEST = ("crash/test_points.py", "loader/test_killed.py", "loader/test_foreign.py", "loader/test_interrupts.py")

# `make test` sets these. A test that runs make itself must see a first make, not one below another.
# Users do not set the last one, with which Python writes to a closed pipe at once.
for _name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONUNBUFFERED"):
    os.environ.pop(_name, None)

# Threads of torch that spin while they wait would take the two cores from the other worker of pytest: tests of
# augmentations take twice as long then. The threads that OpenBLAS starts in each worker of a build would take a quarter
# of its processor time; `prep` avoids that with the same setting.
os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}

# A shell starts commands in the background with SIGINT ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# There is no deadline, because times on a busy machine with two cores mean nothing. CI tries the same examples in every
# run, so that its result does not depend on chance. Other runs try new ones.
settings.register_profile("decodeonce", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("decodeonce")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test-all SEED=...` uses, and the one that `.ci/run` uses."""
    parser.addoption("--sample", metavar="SEED", help="run a random sample of the chosen tests, for seven minutes")
    parser.addoption("--write-skipped", metavar="FILE", help="write the names of the skipped tests; @FILE runs them")


@pytest.hookimpl(trylast=True)  # pytest has applied -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the files that take longest, or leave out the tests that are not in the sample."""
    seed = config.getoption("sample")
    if seed is None:
        items.sort(key=lambda item: group_of_test(item.nodeid).endswith(LONGEST), reverse=True)
        return
    tests = {item.nodeid: item for item in items}
    items[:] = [tests.pop(nodeid) for nodeid in sample(tests, seed)]
    config.hook.pytest_deselected(items=list(tests.values()))


def pytest_collection_finish() -> None:
    """Let the garbage collector skip all modules; a collection then takes a tenth of the time."""
    gc.collect()
    gc.freeze()


def sample(nodeids: Iterable[str], seed: str) -> list[str]:
    """Return at most SAMPLED random tests of each group, in their order. The order of the groups is random.

    Time may run out before the last groups are reached.
    """
    random = Random(seed)
    groups = [list(tests) for _, tests in groupby(nodeids, group_of_test)]
    random.shuffle(groups)
    chosen = [sorted(random.sample(range(len(tests)), min(len(tests), SAMPLED))) for tests in groups]
    return [tests[place] for tests, places in zip(groups, chosen, strict=True) for place in places]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start no test of a sample after its time is over."""
    if item.config.getoption("sample") is not None and time.monotonic() - STARTED > SAMPLE_SECONDS:
        pytest.skip(TIME_IS_OVER)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    os.environ.pop(CURRENT_TEST, None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    os.environ.pop(CURRENT_TEST, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[PROCESSOR_SECONDS] = processor_seconds()
    return (yield)


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count skipped tests by reason, and list tests of `make test` that take more than a second of processor time.

    Mark or split the latter.
    """
    skipped = terminalreporter.stats.get("skipped", ())
    for reason, count in Counter(skip_reason(report) for report in skipped).most_common():
        terminalreporter.write_line(f"{count:5} skipped: {reason}")
    if path := terminalreporter.config.getoption("write_skipped"):
        Path(path).write_text("".join(f"{report.nodeid}\n" for report in skipped))
    taken = {
        report.nodeid: dict(report.user_properties).get("processor_seconds", 0.0)
        for report in terminalreporter.stats.get("", ())
        if not {"long", "release"} & set(report.keywords)
    }
    for nodeid, seconds in sorted(taken.items(), key=itemgetter(1), reverse=True):
        if seconds > 1:
            terminalreporter.write_line(f"{seconds:5.1f} s of processor time: {nodeid}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process, so that its fixtures are set up once.

    Tests that share one Slurm or one GlusterFS stay together as well. The mark xdist_group cannot be used for that:
    pytest 9.2 ignores what pytest-xdist 3.8 makes of it.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # it would start with the files that have the most tests
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of_test
    return scheduler if config.getoption("dist") == "loadgroup" else None


def group_of_test(nodeid: str) -> str:
    """Return the name of a test's group: its file, or the folder whose files share one Slurm or one GlusterFS."""
    path = nodeid.partition("::")[0]
    return next((folder for folder in ("cluster", "netfs") if folder in path.split("/")), path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    if call.when == "call":  # not the teardown, which may end a process that many tests used
        seconds = processor_seconds() - item.stash[PROCESSOR_SECONDS]
        item.user_properties.append(("processor_seconds", seconds))
    return fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    return fail_if_skipped((yield))


def fail_if_skipped(report: Any) -> Any:
    """In CI, turn the report of a skipped test or module into a failure, except for two reasons."""
    if report.skipped and not hasattr(report, "wasxfail") and is_fatal(os.environ):
        why = skip_reason(report)
        if "accelerator" not in why and TIME_IS_OVER not in why:
            report.outcome, report.longrepr = "failed", f"in CI, tests must not be skipped ({why})"
    return report


def skip_reason(report: Any) -> str:
    """Return why a test or module was skipped."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


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
