"""Create `build/oldest-venv`: this project and its tests with the oldest versions that pyproject.toml allows."""

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
    """Create the environment, with all extras."""
    say(f"creating {VENV.relative_to(ROOT)}; it takes minutes, mostly for torch and for compiling pillow-simd")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    run(sys.executable, "-m", "venv", VENV, venv=VENV)
    # pip's cache is not used, because it may have a pillow-simd that was compiled for another CPU.
    options = ("--no-cache-dir", "--no-binary", "pillow-simd", "-e", ".[test,prep]", "accelerate", "pytorch-lightning")
    pip("install", *options, venv=VENV, PIP_CONSTRAINT=str(PINS), CC=shlex.join(compiler()))


def main() -> int:
    """Run the command."""
    return remake(make_venv, stamp=STAMP, inputs=INPUTS)


if __name__ == "__main__":
    sys.exit(main())
