"""Install atheris, which runs the fuzz targets, into `build/fuzz/atheris`. It leaves .venv unchanged.

atheris has wheels for Linux and some releases of Python only. If none fits, an error says so.
"""

from __future__ import annotations

import platform
import shutil
import sys

from tools.setup_env import ROOT, SetupError, pip, say

ATHERIS = "atheris==3.0.0"
FOLDER = ROOT / "build" / "fuzz" / "atheris"


def main() -> int:
    """Install atheris unless it is installed; return 1 if that fails."""
    if (FOLDER / f"{ATHERIS.replace('==', '-')}.dist-info").is_dir():
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    say(f"installing {ATHERIS}")
    try:
        pip("install", "--no-deps", "--only-binary", ":all:", "--target", str(FOLDER), ATHERIS)
    except SetupError:
        here = f"Python {platform.python_version()} on {sys.platform}, {platform.machine()}"
        other = "or try another Python: make PYTHON=python3.11 fuzz"
        print(f"setup: error: could not install {ATHERIS} for {here}; {other}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
