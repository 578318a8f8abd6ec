"""Put atheris, which the fuzz targets run on, beside .venv in `build/fuzz/atheris`: .venv itself stays as it is.

There are wheels of it for Linux and some releases of Python; where there is none a line says so.
"""

from __future__ import annotations

import platform
import shutil
import sys

from tools.setup_env import LOG, ROOT, SetupError, pip, say

ATHERIS = "atheris==3.0.0"
FOLDER = ROOT / "build" / "fuzz" / "atheris"


def main() -> int:
    """Install it where it is not; 1 where it cannot be had."""
    if (FOLDER / f"{ATHERIS.replace('==', '-')}.dist-info").is_dir():
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    say(f"installing {ATHERIS}")
    try:
        pip("install", "--no-deps", "--only-binary", ":all:", "--target", str(FOLDER), ATHERIS)
    except SetupError:
        here = f"Python {platform.python_version()} on {sys.platform}, {platform.machine()}"
        other = "another Python may have it (make PYTHON=python3.11 fuzz)"
        print(f"setup: error: {ATHERIS} could not be installed for {here}; see {LOG}, {other}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
