"""Write constraints.txt with uv, or check that it resolves on every Python that pyproject.toml declares (--check)."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"
COMPILE = ("-m", "uv", "pip", "compile", "-q", "--all-extras", "--no-annotate", "--custom-compile-command", "make lock")


def declared() -> list[str]:
    """Return the Python versions in the classifiers of pyproject.toml, oldest first."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())


def resolve(*options: str | Path) -> bool:
    """Resolve all extras with uv without installing, and return whether that succeeded. uv prints conflicts."""
    return subprocess.run([sys.executable, *COMPILE, *options, "pyproject.toml"], cwd=ROOT).returncode == 0


def lock(path: Path) -> bool:
    """Write the pins for all declared Pythons to `path`. Pins already there are kept if they still fit."""
    return resolve("--universal", "--python-version", declared()[0], "-o", path)


def check() -> list[str]:
    """Return the errors of constraints.txt, one sentence each."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "constraints.txt")
        copy.write_bytes(LOCK.read_bytes())
        if not lock(copy) or copy.read_bytes() != LOCK.read_bytes():
            return ["constraints.txt does not match pyproject.toml; run: make lock"]
        # uv reads 3.11 as 3.11.0.
        resolved = {
            version: resolve("--python-version", version, "-c", copy, "-o", copy.with_name("resolved.txt"))
            for version in declared()
        }
    return [f"constraints.txt does not resolve on Python {version}" for version, ok in resolved.items() if not ok]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="check only: write nothing; exit with 1 if a check fails")
    if not parser.parse_args().check:
        return 0 if lock(LOCK) else 1
    errors = check()
    print(*(f"lock: error: {error}" for error in errors), sep="\n", file=sys.stderr, end="\n" if errors else "")
    if not errors:
        print(f"lock: constraints.txt resolves on Python {', '.join(declared())}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
