"""One rank of a training, in a process of its own: `python -m tests.loader.rank_worker JOB`, JOB being a Job as JSON.

It says on standard output where it is and goes on when it is given a line, or has no standard input any more.
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

PATIENCE = 30  # seconds that a rank waits for another one


@dataclass(frozen=True)
class Job:
    """An epoch of each of `loaders` (settings of a Loader, none of which is a rank), from `state` on if there is one.

    The ranks meet at the file `meeting`; checkpoints go to folder/<number of the loader>/rank<r>-step<n>.json.
    """

    store: str
    folder: str
    meeting: str
    rank: int
    world_size: int
    loaders: list[dict[str, Any]]
    state: dict[str, Any] | None = None


def main(job: Job) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.meeting}",
        rank=job.rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=PATIENCE),
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
    """An epoch whose steps all ranks take together; a checkpoint after each."""
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
