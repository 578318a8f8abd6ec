"""Programs that some tests need, their Debian packages, and how to install those automatically."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

# Daemons are in sbin folders, which other users than root do not have on their PATH.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
LOCK = Path(tempfile.gettempdir()) / f"decodeonce-packages-{os.geteuid()}.lock"

# The reason to skip a test that needs a package of the extra `dev`.
NOT_DEV = "{} is not installed; .venv has only the packages of `make test`. Run: make env"
# `.ci/legs` runs some folders of tests without torch. Their modules must import it only in tests with this mark.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
Packages = Mapping[str, str]  # maps a Debian package to a program that it contains


def missing(packages: Packages, path: str = PATH) -> list[str]:
    return [package for package, program in packages.items() if not _is_there(program, path)]


def _is_there(program: str, path: str) -> bool:
    found = shutil.which(program, path=path)
    # The qsub of a real PBS does not count: tests must not submit to a real PBS.
    return found is not None and (program != "qsub" or b"sbatch" in Path(found).read_bytes())


def need(packages: Packages, path: str = PATH) -> None:
    """Install missing programs of these packages. If that fails, skip the test, or let it fail in CI."""
    if not missing(packages, path):
        return
    with install_lock():
        lacking = missing(packages, path)
        why = apt_get(lacking) if lacking else ""
    if lacking := missing(packages, path):
        give_up(f"to run these tests: apt-get install {' '.join(lacking)} ({why})")


@contextmanager
def install_lock() -> Iterator[None]:
    """Let one test process install at a time. A second apt-get would fail, because the first holds apt's locks."""
    with open(LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def give_up(reason: str) -> NoReturn:
    """Skip a test that cannot run here, or let it fail in CI, where a skipped test would go unnoticed."""
    (pytest.fail if is_fatal(os.environ) else pytest.skip)(reason)


def apt_get(packages: list[str]) -> str:
    """Install packages with apt-get. Return the reason to report if their programs are still missing afterwards."""
    if os.geteuid() or not shutil.which("apt-get"):
        return "the tests do this automatically if root runs them on a system with apt-get"
    for arguments in (["update", "-q"], ["install", "-qy", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.startswith("E:")] or done.stdout.splitlines()
            return f"apt-get {arguments[0]}: {lines[0] if lines else 'no output'} (exit {done.returncode})"
    return "they were installed, but their programs are still missing"


def is_fatal(environ: Mapping[str, str]) -> bool:
    """Return whether a skipped test is a failure: in CI, except if ALLOW_SKIPS is set."""
    return bool(environ.get("CI")) and not environ.get("ALLOW_SKIPS")
