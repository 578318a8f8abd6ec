"""Run all benchmarks in turn, on a generated tree in build/. `make bench` runs this script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "build"


def run(*command: str | Path) -> None:
    """Print a command and run it with this Python."""
    words = list(map(str, command))
    print("\n$ python", " ".join(words), flush=True)
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)


def main() -> None:
    """Run the benchmarks of builds, then those of a store: loading, staging, augmenting, other loaders, a GPU."""
    tree, store = SCRATCH / "sample-imagenet", SCRATCH / "bench.store"
    SCRATCH.mkdir(exist_ok=True)
    if not tree.exists():
        run("examples/sample.py", tree)
    run("-m", "bench.build", tree)
    run("-m", "bench.sources", tree)
    run("-m", "bench.cores", tree)
    if not (store / "store.json").exists():
        run("-m", "decodeonce.cli", "build", "imagenet", tree, store)
    run("-m", "bench.loader", store)
    run("-m", "bench.cold")
    run("-m", "bench.stage")
    run("-m", "bench.augment")
    run("-m", "bench.color")
    run("-m", "bench.story")
    run("-m", "bench.peers", tree)
    run("-m", "bench.gpu")
    run("-m", "bench.gpu_peers", tree)


if __name__ == "__main__":
    main()
