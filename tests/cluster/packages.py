"""The programs these tests need, the Debian packages they come in, and installing those where that can be done."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

# A package and the program it is recognised by.
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "munge": "munged",
    "slurm-wlm-torque": "qsub",
    "openmpi-bin": "mpiexec.openmpi",
    "mpich": "mpiexec.mpich",
}
# Daemons lie in sbin, which only root has on the path.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def missing(path: str = PATH) -> list[str]:
    """The packages of which there is no program."""
    return [package for package, program in PACKAGES.items() if not _is_there(program, path)]


def _is_there(program: str, path: str) -> bool:
    found = shutil.which(program, path=path)
    # The qsub of a real PBS would submit to a real PBS.
    return found is not None and (program != "qsub" or b"sbatch" in Path(found).read_bytes())


def provide(path: str = PATH, install: Callable[[list[str]], str] | None = None) -> str:
    """Install what is missing if that is possible; returns "" if all is there now, else what to do about it."""
    if lacking := missing(path):
        why = (install or apt_get)(lacking)
        lacking = missing(path)
    return f"to run these tests: apt-get install {' '.join(lacking)} ({why})" if lacking else ""


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
    """Whether a run without these programs is a failure: where CI is set, nothing may be skipped unseen."""
    return bool(environ.get("CI"))
