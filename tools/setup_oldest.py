"""Create `build/oldest-venv`: the oldest Python and packages that pyproject.toml allows, this project and its tests."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tools.lock import declared
from tools.setup_env import ROOT, SetupError, compiler, pip, remake, run, say

VENV = ROOT / "build" / "oldest-venv"
STAMP = VENV / "setup.txt"
PINS = ROOT / "constraints-oldest.txt"
INPUTS = (ROOT / "pyproject.toml", PINS, Path(__file__).resolve())


def find_python(version: str) -> str:
    """Return a Python of this version that can create environments: the one on the PATH, or one of pyenv."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    for python in (f"python{version}", *map(str, pyenv)):
        try:
            subprocess.run([python, "-c", "import ensurepip"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    raise SetupError(
        f"the oldest versions need Python {version}, and python{version} is not installed or has no venv; "
        f"install it (for instance: pyenv install {version}), then run make test-oldest again"
    )


def make_venv() -> None:
    """Create the environment."""
    python = find_python(declared()[0])
    say(f"creating {VENV.relative_to(ROOT)}; it takes minutes: torch with CUDA is 3 GB, and pillow-simd is compiled")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    run(python, "-m", "venv", VENV)
    # pip's cache is not used, because it may have a pillow-simd that was compiled for another CPU.
    options = ("--no-cache-dir", "--no-binary", "pillow-simd", "-e", ".[test,prep-simd]")
    pip("install", *options, venv=VENV, PIP_CONSTRAINT=str(PINS), CC=shlex.join(compiler()))


def main() -> int:
    """Run the command."""
    return remake(make_venv, stamp=STAMP, inputs=INPUTS)


if __name__ == "__main__":
    sys.exit(main())
