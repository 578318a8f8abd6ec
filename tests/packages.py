"""Programs that some tests need, the Debian packages they come in, and installing those where that can be done."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

# Daemons lie in sbin, which only root has on the path.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
LOCK = Path(tempfile.gettempdir()) / f"decodeonce-packages-{os.geteuid()}.lock"

# Why a test that needs a package of the extra `dev` is skipped.
NOT_DEV = "{} is not installed; .venv has only what `make test` needs, `make env` adds the rest"
# `.ci/legs` runs some folders of tests without torch: their modules may import it only in tests marked so.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
Packages = Mapping[str, str]  # a package, and the program it is recognised by


def missing(packages: Packages, path: str = PATH) -> list[str]:
    """The packages of which there is no program."""
    return [package for package, program in packages.items() if not _is_there(program, path)]


def _is_there(program: str, path: str) -> bool:
    found = shutil.which(program, path=path)
    # The qsub of a real PBS would submit to a real PBS.
    return found is not None and (program != "qsub" or b"sbatch" in Path(found).read_bytes())


def provide(packages: Packages, path: str = PATH, install: Callable[[list[str]], str] | None = None) -> str:
    """Install what is missing if that is possible; returns "" if all is there now, else what to do about it."""
    if not missing(packages, path):
        return ""
    with alone():
        if lacking := missing(packages, path):
            why = (install or apt_get)(lacking)
            lacking = missing(packages, path)
    return f"to run these tests: apt-get install {' '.join(lacking)} ({why})" if lacking else ""


@contextmanager
def alone() -> Iterator[None]:
    """Be the only process of these tests that installs: a second apt-get would fail, for the first has its locks."""
    with open(LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def apt_get(packages: list[str]) -> str:
    """Install packages; returns why their programs may still be missing."""
    if os.geteuid() or not shutil.which("apt-get"):
        return "tests that root runs do that themselves, where there is apt-get"
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
            return f"apt-get {arguments[0]}: {lines[0] if lines else 'nothing'} (exit {done.returncode})"
    return "that was done, but their programs are not there"


def is_fatal(environ: Mapping[str, str]) -> bool:
    """Whether a skipped test is a failure: in CI, except in runs that set ALLOW_SKIPS since they lack something."""
    return bool(environ.get("CI")) and not environ.get("ALLOW_SKIPS")


def need(packages: Packages) -> None:
    """Have the programs of these packages be there; else the tests that need them are skipped, or fail with CI set."""
    if problem := provide(packages):
        (pytest.fail if is_fatal(os.environ) else pytest.skip)(problem)
