"""Kill the two resumable scripts of docs/how-to/multi-gpu-and-resume.md with SIGKILL in every step, and resume them."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.docs.pages import ROOT, blocks
from tests.stores import make_store, random_images

EPOCHS, BATCH = 2, 2
ROWS = 13  # 7 steps for one rank, 4 for two, 3 for three; in the last step, all ranks but one have only padding
STEPS = 7
LINES = {"plain": 20, "weighted": 20, "augmented": 10}  # lines that each script runs per step that saves
SCRIPTS = [pytest.param(name, marks=[] if name == "plain" else [pytest.mark.long]) for name in LINES]


@dataclass
class Runner:
    """Runs the script with one process per rank."""

    server: subprocess.Popen[str]
    script: Path
    store: Path
    lines: int
    weighted: bool
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def folder(self, parent: Path) -> Path:
        folder = parent / f"run{next(self.numbers)}"
        folder.mkdir()
        (folder / "train.store").symlink_to(self.store)
        return folder

    def run(self, folder: Path, **options: Any) -> list[int]:
        """Run the script and return the exit status of each rank.

        A rank that fails because another rank was killed counts as killed: it may fail before the server kills it.
        """
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        run = {"script": str(self.script), "folder": str(folder), "ranks": 1, "port": 0, "step": 0, "line": 0}
        print(json.dumps(run | options), file=self.server.stdin, flush=True)
        statuses: list[int] = json.loads(self.server.stdout.readline())
        outputs = [(folder / f"rank{rank}.out").read_text() for rank in range(len(statuses))]
        if -signal.SIGKILL in statuses:
            lost_peer = ["Connection" in output and "by peer" in output for output in outputs]
            statuses = [-signal.SIGKILL if lost_peer[rank] else status for rank, status in enumerate(statuses)]
        assert set(statuses) <= {0, -signal.SIGKILL}, "\n".join(outputs)
        return statuses


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command, environ = [sys.executable, "-m", "tests.docs.fork_server"], os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environ, **pipes) as server:
        yield server
        server.communicate("")


@pytest.fixture(scope="module", params=SCRIPTS)
def runner(
    server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Runner:
    folder = tmp_path_factory.mktemp("runner")
    if request.param in ("plain", "weighted"):
        page = ROOT / "docs" / "how-to" / "multi-gpu-and-resume.md"
        (text,) = [block.text for block in blocks(page) if "os.replace" in block.text]
    else:
        text = (ROOT / "examples" / "train_mixup.py").read_text()
    text, epochs = re.subn(r"EPOCHS, EVERY, (\w+) = \d+, 100,", rf"EPOCHS, EVERY, \1 = {EPOCHS}, 1,", text)
    weights = ' weights="balanced",' if request.param == "weighted" else ""
    text, batches = re.subn("batch_size=256,", f"batch_size={BATCH},{weights}", text)
    assert (epochs, batches) == (1, 1)
    (folder / "train.py").write_text(text)
    columns = {"weight": np.linspace(0.5, 1.5, ROWS, dtype="<f4")}
    store = make_store(folder / "store", random_images(ROWS, shape=(8, 8, 3)), shard_rows=7, columns=columns)
    return Runner(server, folder / "train.py", store, LINES[request.param], weighted=bool(weights))


def pop_log(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Return the batches that a rank has logged, and remove its log."""
    path = folder / f"rows{rank}.jsonl"
    lines = path.read_text().splitlines()
    path.unlink()
    return [json.loads(line) for line in lines]


def checkpoint(folder: Path) -> Any:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def saved(folder: Path, logged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the logged batches that the checkpoint contains."""
    if not (folder / "checkpoint.pt").exists():
        return []
    state = checkpoint(folder)["loader"]
    return [batch for batch in logged if batch["state"] <= [state["epoch"], state["rows_consumed"]]]


@pytest.fixture(scope="module")
def uninterrupted(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Any]:
    """The batches of an uninterrupted run, and its checkpoint."""
    folder = runner.folder(tmp_path_factory.mktemp("uninterrupted"))
    assert runner.run(folder) == [0]
    batches = pop_log(folder)
    assert [batch["epoch"] for batch in batches] == [epoch for epoch in range(EPOCHS) for _ in range(STEPS)]
    each_once = Counter(itertools.product(range(EPOCHS), range(ROWS)))
    assert (count_rows(batches) == each_once) == (not runner.weighted)
    return batches, checkpoint(folder)


def count_rows(batches: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """How often each row occurs in each epoch."""
    return Counter((batch["epoch"], row) for batch in batches for row in batch["rows"])


def test_run_killed_in_every_step_gives_the_same_model(runner: Runner, uninterrupted: Any, tmp_path: Path) -> None:
    batches, expected = uninterrupted
    folder, trained, kills = runner.folder(tmp_path), list[dict[str, Any]](), 0
    while runner.run(folder, step=2, line=7 * kills % runner.lines) != [0]:
        kills += 1
        trained += saved(folder, pop_log(folder))
        assert trained == batches[: len(trained)]
    assert trained + pop_log(folder) == batches
    assert kills == EPOCHS * STEPS - 1
    torch.testing.assert_close(checkpoint(folder)["model"], expected["model"], rtol=0, atol=0)
    assert checkpoint(folder)["loader"] == expected["loader"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("step", [3, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 4, 7))])
def test_three_ranks_resume_two_killed_ranks(runner: Runner, uninterrupted: Any, tmp_path: Path, step: int) -> None:
    folder = runner.folder(tmp_path)
    assert runner.run(folder, ranks=2, port=free_port(), step=step, line=6) == [-signal.SIGKILL] * 2
    before = saved(folder, pop_log(folder, 0) + pop_log(folder, 1))
    assert runner.run(folder, ranks=3, port=free_port()) == [0] * 3
    after = [batch for rank in range(3) for batch in pop_log(folder, rank)]
    assert count_rows(before + after) == count_rows(uninterrupted[0])
    assert any(not batch["rows"] for batch in before + after)
    assert checkpoint(folder)["loader"]["epoch"] == EPOCHS
    assert all(part.isfinite().all() for part in checkpoint(folder)["model"].values())
