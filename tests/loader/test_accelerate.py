"""A Loader in Hugging Face's accelerate: the end of an epoch, and the padding of an evaluation."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from decodeonce import Loader
from tests.conftest import COUNT
from tests.libraries import library

SIZE = 8  # 8 batches of the store, the last of 4 rows


def synced(batches: Loader | DataLoader[tuple[torch.Tensor, ...]], every: int = 3) -> list[bool]:
    """Return for each batch of two epochs whether accelerate would make a step."""
    accelerator, model = (
        library("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=every),
        torch.nn.Linear(1, 1),
    )
    prepared, found = accelerator.prepare(batches), []
    for _ in range(2):
        for _ in prepared:
            with accelerator.accumulate(model):
                found.append(accelerator.sync_gradients)
    return found


def test_accumulation_makes_a_step_at_the_end_of_an_epoch(store: Path) -> None:
    with Loader(store, batch_size=SIZE, tail="keep") as loader:
        ours = synced(loader)
    assert ours == synced(DataLoader(TensorDataset(torch.zeros(COUNT)), batch_size=SIZE))
    assert ours == [False, False, True, False, False, True, False, True] * 2


def test_inner_loop_leaves_the_outer_one_active(store: Path) -> None:
    state: Any = library("accelerate").state.GradientState()
    with Loader(store, batch_size=SIZE) as outer, Loader(store, batch_size=SIZE) as inner:
        for number, _ in enumerate(epoch := iter(outer), 1):
            assert state.active_dataloader is epoch
            assert state.end_of_dataloader == (number == len(outer))
            for _ in inner:
                assert state.remainder == 0
            if number == 3:
                next(iter(inner))
        assert state.active_dataloader is None


RANK = """
import sys
from accelerate import Accelerator
from decodeonce import Loader
accelerator = Accelerator(cpu=True)
seen = []
for batch in Loader(sys.argv[1], batch_size=16, shuffle="none", tail="pad"):
    seen += accelerator.gather_for_metrics(batch.rows.clone()).tolist()
assert seen == list(range(60)), seen
print("right")
accelerator.end_training()
"""


@pytest.mark.long
def test_each_row_is_evaluated_once_on_three_ranks(store: Path) -> None:
    library("accelerate")
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--no-python", sys.executable, "-c")
    done = subprocess.run([sys.executable, *command, RANK, store], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("right")) == (0, 3), done.stderr
