"""All benchmarks one after the other, on a drawn tree under build/: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRATCH = HERE.parent / "build"


def run(*command: str | Path) -> None:
    """Run a program of this Python, and say so."""
    words = list(map(str, command))
    print("\n$ python", " ".join(words), flush=True)
    subprocess.run([sys.executable, *words], check=True, cwd=HERE.parent)


def main() -> None:
    """Benchmarks of builds, then of a store of the same pictures: loading, staging, augmenting, peers, a GPU."""
    tree, store = SCRATCH / "sample-imagenet", SCRATCH / "bench.store"
    SCRATCH.mkdir(exist_ok=True)
    if not tree.exists():
        run("-m", "decodeonce.cli", "sample", tree)
    run(HERE / "build.py", tree)
    run(HERE / "sources.py", tree)
    if not (store / "store.json").exists():
        run("-m", "decodeonce.cli", "build", "imagenet", tree, store)
    run(HERE / "loader.py", store)
    run(HERE / "cold.py")
    run(HERE / "stage.py")
    run(HERE / "augment.py")
    run("-m", "bench.peers", tree)
    run(HERE / "gpu.py")


if __name__ == "__main__":
    main()
