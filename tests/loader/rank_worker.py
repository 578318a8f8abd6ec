"""Run one rank of a training in its own process: `python -m tests.loader.rank_worker JOB`, where JOB is a Job as JSON.

It prints each point that it reaches, and continues when it reads a line or standard input is closed.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from decodeonce import Loader

TIMEOUT_S = 30  # seconds that a rank waits for another one


@dataclass(frozen=True)
class Job:
    """Train an epoch with each of `loaders` (settings of a Loader without a rank), resumed from `state` if given.

    Ranks find each other through the file `rendezvous`. A checkpoint is the file
    folder/<number of the loader>/rank<r>-step<n>.json.
    """

    store: str
    folder: str
    rendezvous: str
    rank: int
    world_size: int
    loaders: list[dict[str, Any]]
    state: dict[str, Any] | None = None


def main(job: Job) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.rendezvous}",
        rank=job.rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    for number, settings in enumerate(job.loaders):
        folder = Path(job.folder, str(number))
        folder.mkdir(parents=True, exist_ok=True)
        with Loader(job.store, **settings) as loader:
            if job.state is not None:
                loader.load_state_dict(job.state)
            train(loader, folder)
    dist.destroy_process_group()


def train(loader: Loader, folder: Path) -> None:
    """Run an epoch in which all ranks take each step together, with a checkpoint after each step."""
    rows: list[int] = []
    for step, batch in enumerate(loader, 1):
        rows += batch.rows[: batch.valid].tolist()
        together = torch.tensor([step])
        dist.all_reduce(together)
        assert together.item() == step * dist.get_world_size(), "the ranks are not at the same step"
        pause(f"reduced {step}")
        checkpoint = {"place": [loader.rank, loader.world_size], "rows": rows, "state": loader.state_dict()}
        path = folder / f"rank{dist.get_rank()}-step{step}.json"
        path.with_suffix(".part").write_text(json.dumps(checkpoint))
        os.replace(path.with_suffix(".part"), path)
        pause(f"saved {step}")


def pause(point: str) -> None:
    print(point, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
