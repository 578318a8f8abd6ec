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
    """The Pythons of the classifiers in pyproject.toml, oldest first."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())


def resolve(*options: str | Path) -> bool:
    """Resolve all extras with uv, without installing; uv prints conflicts itself."""
    return subprocess.run([sys.executable, *COMPILE, *options, "pyproject.toml"], cwd=ROOT).returncode == 0


def lock(path: Path) -> bool:
    """Write the pins for all declared Pythons; pins already in `path` stay where they still fit."""
    return resolve("--universal", "--python-version", declared()[0], "-o", path)


def check() -> list[str]:
    """What is wrong with constraints.txt."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "constraints.txt")
        copy.write_bytes(LOCK.read_bytes())
        if not lock(copy) or copy.read_bytes() != LOCK.read_bytes():
            return ["constraints.txt does not match pyproject.toml; run: make lock"]
        # uv takes 3.11 as 3.11.0.
        resolved = {
            version: resolve("--python-version", version, "-c", copy, "-o", copy.with_name("resolved.txt"))
            for version in declared()
        }
    return [f"constraints.txt does not resolve on Python {version}" for version, fits in resolved.items() if not fits]


def main() -> int:
    """Write the lock, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="install nothing and write nothing; exit 1 on a fault")
    if not parser.parse_args().check:
        return 0 if lock(LOCK) else 1
    faults = check()
    print(*(f"lock: error: {fault}" for fault in faults), sep="\n", file=sys.stderr, end="\n" if faults else "")
    if not faults:
        print(f"lock: constraints.txt resolves on Python {', '.join(declared())}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
