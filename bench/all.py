"""Run all benchmarks in turn, on a generated tree in build/. `make bench` runs this script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRATCH = HERE.parent / "build"


def run(*command: str | Path) -> None:
    """Print a command and run it with this Python."""
    words = list(map(str, command))
    print("\n$ python", " ".join(words), flush=True)
    subprocess.run([sys.executable, *words], check=True, cwd=HERE.parent)


def main() -> None:
    """Run the benchmarks of builds, then those of a store: loading, staging, augmenting, other loaders, a GPU."""
    tree, store = SCRATCH / "sample-imagenet", SCRATCH / "bench.store"
    SCRATCH.mkdir(exist_ok=True)
    if not tree.exists():
        run("-m", "decodeonce.cli", "sample", tree)
    run(HERE / "build.py", tree)
    run(HERE / "sources.py", tree)
    run(HERE / "cores.py", tree)
    if not (store / "store.json").exists():
        run("-m", "decodeonce.cli", "build", "imagenet", tree, store)
    run(HERE / "loader.py", store)
    run(HERE / "cold.py")
    run(HERE / "stage.py")
    run(HERE / "augment.py")
    run("-m", "bench.peers", tree)
    run(HERE / "gpu.py")
    run(HERE / "gpu_peers.py", tree)


if __name__ == "__main__":
    main()
