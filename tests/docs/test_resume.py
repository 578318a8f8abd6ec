"""The two scripts of docs/training.md that save and resume, killed with SIGKILL in every step."""

from __future__ import annotations

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

from tests.docs.fork_server import Order, order_line
from tests.docs.pages import ROOT, blocks
from tests.stores import make_store, random_images

EPOCHS, BATCH = 2, 2
COUNT = 13  # 7 steps of one rank, 4 of two, 3 of three; in the last of them all ranks but one have nothing but padding
STEPS = 7
LINES = {"plain": 20, "augmented": 10}  # that a script runs from one batch to the next if it saves in between


@dataclass
class Runs:
    """Runs of the script, each in a process of its own for each rank, that end or are killed."""

    server: subprocess.Popen[str]
    store: Path
    lines: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def folder(self, parent: Path) -> Path:
        """A new folder to train in."""
        folder = parent / f"run{next(self.numbers)}"
        folder.mkdir()
        (folder / "train.store").symlink_to(self.store)
        return folder

    def run(self, folder: Path, **order: Any) -> list[int]:
        """Run the script; returns the exit status of each rank, SIGKILL's too for one that lost a killed rank."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(order_line(Order(str(folder), **order)))
        self.server.stdin.flush()
        statuses: list[int] = json.loads(self.server.stdout.readline())
        outputs = [(folder / f"rank{rank}.out").read_text() for rank in range(len(statuses))]
        if -signal.SIGKILL in statuses:  # another rank may notice that before it is killed, too
            lost = ["Connection" in output and "by peer" in output for output in outputs]
            statuses = [-signal.SIGKILL if lost[rank] else status for rank, status in enumerate(statuses)]
        assert set(statuses) <= {0, -signal.SIGKILL}, "\n".join(outputs)
        return statuses


@pytest.fixture(scope="module", params=LINES)
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    scripts = [block.text for block in blocks(ROOT / "docs" / "training.md") if "os.replace" in block.text]
    (text,) = [text for text in scripts if ("MixUp" in text) == (request.param == "augmented")]
    for told, here in {
        r"EPOCHS, EVERY, (\w+) = \d+, 100,": rf"EPOCHS, EVERY, \1 = {EPOCHS}, 1,",
        r"batch_size=256,": f"batch_size={BATCH},",
    }.items():
        text, found = re.subn(told, here, text)
        assert found == 1
    (folder / "train.py").write_text(text)
    columns = {"weight": np.linspace(0.5, 1.5, COUNT, dtype="<f4")}
    store = make_store(folder / "store", random_images(COUNT, shape=(8, 8, 3)), shard_rows=7, columns=columns)
    command = [sys.executable, "-m", "tests.docs.fork_server", str(folder / "train.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes) as server:
        yield Runs(server, store, LINES[request.param])
        server.communicate("")


def log(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """What a rank has written of its batches; the file is emptied."""
    path = folder / f"rows{rank}.jsonl"
    lines = path.read_text().splitlines()
    path.unlink()
    return [json.loads(line) for line in lines]


def checkpoint(folder: Path) -> Any:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def saved(folder: Path, logged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The batches that the checkpoint has."""
    if not (folder / "checkpoint.pt").exists():
        return []
    state = checkpoint(folder)["loader"]
    return [batch for batch in logged if batch["state"] <= [state["epoch"], state["rows_consumed"]]]


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Any]:
    """The batches of an uninterrupted run, and its checkpoint."""
    folder = runs.folder(tmp_path_factory.mktemp("whole"))
    assert runs.run(folder) == [0]
    batches = log(folder)
    assert [batch["epoch"] for batch in batches] == [epoch for epoch in range(EPOCHS) for _ in range(STEPS)]
    assert_each_row_once(batches)
    return batches, checkpoint(folder)


def assert_each_row_once(batches: list[dict[str, Any]]) -> None:
    """Each row once in each epoch."""
    seen = Counter((batch["epoch"], row) for batch in batches for row in batch["rows"])
    assert seen == Counter(itertools.product(range(EPOCHS), range(COUNT)))


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, the tensors too."""
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_run_that_is_killed_in_every_step_trains_the_same(runs: Runs, whole: Any, tmp_path: Path) -> None:
    batches, expected = whole
    folder, trained, kills = runs.folder(tmp_path), list[dict[str, Any]](), 0
    while runs.run(folder, step=2, line=7 * kills % runs.lines) != [0]:
        kills += 1
        trained += saved(folder, log(folder))
        assert trained == batches[: len(trained)]
    assert trained + log(folder) == batches
    assert kills == EPOCHS * STEPS - 1
    assert_same(checkpoint(folder)["model"], expected["model"])
    assert checkpoint(folder)["loader"] == expected["loader"]


@pytest.mark.long
@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, EPOCHS * STEPS])
def test_a_run_that_is_killed_at_any_line_trains_the_same(runs: Runs, whole: Any, tmp_path: Path, step: int) -> None:
    batches, expected = whole
    for line in range(runs.lines):
        folder = runs.folder(tmp_path)
        assert runs.run(folder, step=step, line=line) == [-signal.SIGKILL]
        trained = saved(folder, log(folder))
        assert len(trained) >= step - 1
        assert runs.run(folder) == [0]
        assert trained + (log(folder) if len(trained) < len(batches) else []) == batches
        assert_same(checkpoint(folder)["model"], expected["model"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("step", [3, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 2, 4, 5, 6, 7))])
def test_two_ranks_that_are_killed_are_resumed_by_three(runs: Runs, tmp_path: Path, step: int) -> None:
    folder = runs.folder(tmp_path)
    assert runs.run(folder, ranks=2, port=free_port(), step=step, line=6) == [-signal.SIGKILL] * 2
    before = saved(folder, log(folder, 0) + log(folder, 1))
    assert runs.run(folder, ranks=3, port=free_port()) == [0] * 3
    after = [batch for rank in range(3) for batch in log(folder, rank)]
    assert_each_row_once(before + after)
    assert any(not batch["rows"] for batch in before + after)
    assert checkpoint(folder)["loader"]["epoch"] == EPOCHS
    assert all(part.isfinite().all() for part in checkpoint(folder)["model"].values())
