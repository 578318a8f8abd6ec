"""Build a store with Ray, which divides the work among its nodes. All need access to both folders.

    python build_with_ray.py /data/imagenet train.store --tasks 16 --workers 32

On a cluster of Ray, set RAY_ADDRESS. Ray does not give a process its number, so each gets --task. If the build stops,
run the same command again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import ray

PREP = [sys.executable, "-m", "decodeonce.cli"]


def decode(out: Path, task: int, tasks: int, workers: int) -> None:
    """Decode the share of one task with this number of processes."""
    numbers = ["--task", str(task), "--tasks", str(tasks), "--workers", str(workers)]
    subprocess.run([*PREP, "work", str(out), *numbers], check=True)


def main() -> None:
    """Plan on this machine, decode on all nodes, and finish on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of ImageNet; for other data, change `prep plan`")
    parser.add_argument("out", type=Path, help="folder of the store")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="processes, and cores, per task")
    args = parser.parse_args()
    out = args.out.absolute()
    subprocess.run([*PREP, "plan", "imagenet", str(args.source), str(out)], check=True)
    ray.init()
    remote = ray.remote(decode).options(num_cpus=args.workers)
    ray.get([remote.remote(out, task, args.tasks, args.workers) for task in range(args.tasks)])
    ray.shutdown()
    subprocess.run([*PREP, "finish", str(out)], check=True)


if __name__ == "__main__":
    main()
