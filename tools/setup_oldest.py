"""Make `build/oldest-venv`: this project and its tests with the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from tools.setup_env import ROOT, compiler, pip, remake, run, say

VENV = ROOT / "build" / "oldest-venv"
STAMP = VENV / "setup.txt"
PINS = ROOT / "constraints-oldest.txt"
INPUTS = (ROOT / "pyproject.toml", PINS, Path(__file__).resolve())


def make_venv() -> None:
    """A new environment, with all extras."""
    say(f"making {VENV.relative_to(ROOT)}; it takes minutes, most of them for torch and for compiling pillow-simd")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    run(sys.executable, "-m", "venv", VENV, venv=VENV)
    # What is compiled is compiled for this CPU, and is not what another build of the same version left in pip's cache.
    options = ("--no-cache-dir", "--no-binary", "pillow-simd", "-e", ".[test,prep]", "accelerate", "pytorch-lightning")
    pip("install", *options, venv=VENV, PIP_CONSTRAINT=str(PINS), CC=shlex.join(compiler()))


def main() -> int:
    """Bring the environment up to date."""
    return remake(make_venv, stamp=STAMP, inputs=INPUTS)


if __name__ == "__main__":
    sys.exit(main())
