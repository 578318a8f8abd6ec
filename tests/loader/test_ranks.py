"""Ranks in separate processes that take steps together through gloo. One is killed, and the training is resumed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.loader.rank_worker import TIMEOUT_S, Job
from tests.stores import make_store, random_images

ROOT = Path(__file__).resolve().parents[2]
COUNT = 57  # seven global batches of two ranks, and one more row, which only one rank can get
SETTINGS: dict[str, Any] = {"batch_size": 4, "seed": 3, "tail": "keep"}
# A Loader must ask torch.distributed before it reads these.
MISLEADING = {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture(scope="module")
def uneven_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stores") / "s", random_images(COUNT), shard_rows=25)


@dataclass(frozen=True)
class Rank:
    """A process of rank_worker, and the file with its standard error."""

    process: subprocess.Popen[str]
    errors: Path

    def expect(self, point: str) -> None:
        """Wait until the rank reaches `point`."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{point}\n", self.errors.read_text()

    def proceed(self) -> None:
        """Let the rank continue to its next point."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def release(self) -> None:
        """Let the rank continue to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def status(self) -> int:
        """Wait for the exit status. The remaining output fits into the pipe."""
        return self.process.wait(2 * TIMEOUT_S)


@contextmanager
def ranks(
    store: Path, folder: Path, world_size: int, loaders: list[dict[str, Any]], state: dict[str, Any] | None = None
) -> Iterator[list[Rank]]:
    """Start the ranks of a training, and kill those that are left at the end of the block."""
    folder.mkdir(exist_ok=True)
    started: list[Rank] = []
    try:
        for rank in range(world_size):
            job = Job(str(store), str(folder), str(folder / "meeting"), rank, world_size, loaders, state)
            command = [sys.executable, "-m", "tests.loader.rank_worker", json.dumps(asdict(job))]
            errors = folder / f"rank{rank}.err"
            with errors.open("w") as file:
                pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file}
                process = subprocess.Popen(command, **pipes, text=True, cwd=ROOT, env=os.environ | MISLEADING)
            started.append(Rank(process, errors))
        yield started
    finally:
        for rank_ in started:
            with rank_.process as process:
                process.kill()


def train(store: Path, folder: Path, world_size: int, *loaders: dict[str, Any], state: Any = None) -> None:
    """Run a training to its end."""
    with ranks(store, folder, world_size, list(loaders), state) as started:
        for rank in started:
            rank.release()
        for rank in started:
            assert rank.status() == 0, rank.errors.read_text()


def checkpoints(folder: Path, rank: int, loader: int = 0) -> dict[int, dict[str, Any]]:
    """The checkpoints of a rank by step."""
    paths = (folder / str(loader)).glob(f"rank{rank}-step*.json")
    return {int(path.stem.split("step")[1]): json.loads(path.read_text()) for path in paths}


def rows_seen(folder: Path, world_size: int, loader: int = 0) -> list[list[int]]:
    """The rows of each rank up to its last step; all ranks must have taken the same number of steps."""
    saved = [checkpoints(folder, rank, loader) for rank in range(world_size)]
    assert len({max(steps) for steps in saved}) == 1
    return [steps[max(steps)]["rows"] for steps in saved]


def test_ranks_have_different_rows_in_the_same_number_of_steps(uneven_store: Path, tmp_path: Path) -> None:
    kinds = list(itertools.product(["global", "range"], ["drop", "pad", "keep"]))
    train(uneven_store, tmp_path, 2, *({**SETTINGS, "partition": partition, "tail": tail} for partition, tail in kinds))
    for loader, (_, tail) in enumerate(kinds):
        seen = rows_seen(tmp_path, 2, loader)
        assert len(set(seen[0] + seen[1])) == len(seen[0] + seen[1]) == (COUNT if tail != "drop" else 56)
        for rank in range(2):
            steps = checkpoints(tmp_path, rank, loader)
            assert sorted(steps) == list(range(1, 8 if tail == "drop" else 9))
            assert steps[1]["place"] == [rank, 2]


@pytest.fixture(scope="module")
def interrupted(uneven_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two ranks. One was killed in the fourth of eight steps, before it saved that checkpoint."""
    folder = tmp_path_factory.mktemp("interrupted")
    points = [f"{done} {step}" for step in range(1, 4) for done in ("reduced", "saved")]
    with ranks(uneven_store, folder, 2, [SETTINGS]) as (survivor, victim):
        run_in_lockstep(points, survivor, victim)
        run_in_lockstep(["reduced 4"], survivor, victim, proceed=False)
        survivor.proceed()
        survivor.expect("saved 4")
        victim.process.kill()
        assert victim.status() == -signal.SIGKILL
        survivor.release()
        assert survivor.status() == 1
        assert "all_reduce" in survivor.errors.read_text()
    return folder


def run_in_lockstep(points: Sequence[str], *ranks: Rank, proceed: bool = True) -> None:
    """Let all ranks reach each point before any of them continues."""
    for point in points:
        for rank in ranks:
            rank.expect(point)
        if proceed:
            for rank in ranks:
                rank.proceed()


@pytest.mark.parametrize("world_size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 2))])
def test_each_row_is_seen_once_after_a_rank_was_killed(
    uneven_store: Path, interrupted: Path, tmp_path: Path, world_size: int
) -> None:
    saved = [checkpoints(interrupted, rank) for rank in range(2)]
    assert [sorted(steps) for steps in saved] == [[1, 2, 3, 4], [1, 2, 3]]
    common = max(saved[0].keys() & saved[1].keys())
    before = saved[0][common]["rows"] + saved[1][common]["rows"]
    assert len(before) == 3 * 2 * 4
    train(uneven_store, tmp_path, world_size, SETTINGS, state=saved[0][common]["state"])
    after = rows_seen(tmp_path, world_size)
    assert all(after)
    assert sorted(itertools.chain(before, *after)) == list(range(COUNT))
