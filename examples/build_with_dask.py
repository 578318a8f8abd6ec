"""Build a store with Dask, which divides the work among its workers. All need access to both folders.

    python build_with_dask.py /data/imagenet train.store --tasks 16 --workers 32 --scheduler tcp://HOST:8786

Without --scheduler, the tasks run on this machine. Dask does not give a process its number, so each gets --task. If the
build stops, run the same command again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from dask.distributed import Client

PREP = [sys.executable, "-m", "decodeonce.cli"]


def decode(task: int, out: Path, tasks: int, cores: int) -> None:
    """Decode the share of one task with this number of processes (`workers` is a word of Client.map)."""
    numbers = ["--task", str(task), "--tasks", str(tasks), "--workers", str(cores)]
    subprocess.run([*PREP, "work", str(out), *numbers], check=True)


def main() -> None:
    """Plan on this machine, decode on all workers of Dask, and finish on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of ImageNet; for other data, change `prep plan`")
    parser.add_argument("out", type=Path, help="folder of the store")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="processes per task")
    parser.add_argument("--scheduler", help="address of a Dask scheduler")
    args = parser.parse_args()
    out = args.out.absolute()
    subprocess.run([*PREP, "plan", "imagenet", str(args.source), str(out)], check=True)
    local = {"n_workers": args.tasks, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    settings = {"address": args.scheduler} if args.scheduler else local
    with Client(**settings) as client:  # type: ignore[no-untyped-call]
        shares = client.map(decode, range(args.tasks), out=out, tasks=args.tasks, cores=args.workers)
        client.gather(shares)
    subprocess.run([*PREP, "finish", str(out)], check=True)


if __name__ == "__main__":
    main()
