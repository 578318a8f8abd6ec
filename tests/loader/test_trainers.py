"""Loaders with Lightning and accelerate, which have no special code for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from decodeonce import Batch, Loader
from tests.conftest import COUNT
from tests.libraries import library

BATCH = 4
STEPS = COUNT // BATCH


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_batch_moves_all_tensors(store: Path, weights: Literal["balanced"] | None) -> None:
    with Loader(store, batch_size=BATCH, weights=weights) as loader:
        batch = next(iter(loader))
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert {tensor.device.type for tensor in moved.tensors()} == {"meta"}
    assert (moved.positions is None) == (batch.positions is None) == (weights is None)
    assert len(moved.tensors()) == len(batch.tensors()) == (3 if weights is None else 4)
    assert (moved.valid, moved.epoch) == (batch.valid, batch.epoch)
    assert batch.to("cpu", non_blocking=True).images is batch.images


def test_iterator_without_batches_does_not_count_as_epoch(store: Path) -> None:
    with Loader(store, batch_size=BATCH) as loader, Loader(store, batch_size=BATCH) as resumed:
        for epoch in range(3):
            iter(loader)
            loader.set_epoch(epoch)
            assert loader.state_dict()["epoch"] == epoch
            assert {batch.epoch for batch in loader} == {epoch}
        rest = iter(loader)
        next(rest)
        resumed.load_state_dict(loader.state_dict())
        iter(resumed)
        assert [batch.rows.tolist() for batch in resumed] == [batch.rows.tolist() for batch in rest]


def test_accelerate_checkpoint_includes_the_loader(store: Path, tmp_path: Path) -> None:
    accelerate = library("accelerate")
    with Loader(store, batch_size=BATCH) as loader, Loader(store, batch_size=BATCH) as resumed:
        saving, loading = accelerate.Accelerator(cpu=True), accelerate.Accelerator(cpu=True)
        assert saving.prepare(loader) is loader
        saving.register_for_checkpointing(loader)
        loading.register_for_checkpointing(resumed)
        assert len(list(loader)) == STEPS
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        saving.save_state(tmp_path / "checkpoint")
        loading.load_state(tmp_path / "checkpoint")
        assert (resumed.epoch, resumed.steps_left) == (1, STEPS - 4)
        assert [batch.rows.tolist() for batch in resumed] == [batch.rows.tolist() for batch in batches]


def lightning_fit(store: Path, folder: Path, **options: Any) -> list[tuple[int, int, list[int]]]:
    """Train and validate twice per epoch; return (Lightning's epoch, the batch's epoch, rows) of each step."""
    lightning = library("pytorch_lightning")  # imports torchvision
    seen: list[tuple[int, int, list[int]]] = []
    validated: list[int] = []

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def training_step(self, batch: Batch, number: int) -> Tensor:
            seen.append((self.current_epoch, batch.epoch, batch.rows.tolist()))
            images, labels = batch
            return nn.functional.cross_entropy(self.layer(images.float().mean((1, 2)) / 255), labels)

        def validation_step(self, batch: Batch, number: int) -> None:
            if not self.trainer.sanity_checking:
                validated.extend(batch.rows[: batch.valid].tolist())

        def on_validation_end(self) -> None:
            assert self.trainer.sanity_checking or validated == list(range(COUNT))
            validated.clear()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    keep = lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        max_epochs=3, callbacks=[keep], val_check_interval=STEPS // 2, default_root_dir=folder, **quiet
    )
    loaders = Loader(store, batch_size=BATCH), Loader(store, batch_size=7, shuffle="none", tail="keep")
    with loaders[0], loaders[1]:
        trainer.fit(Model(), *loaders, **options)
    return seen


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_validates_and_resumes_mid_epoch(store: Path, tmp_path: Path) -> None:
    whole = lightning_fit(store, tmp_path / "whole")
    assert [(theirs, ours) for theirs, ours, _ in whole] == [(e, e) for e in range(3) for _ in range(STEPS)]
    done = STEPS + 4
    assert lightning_fit(store, tmp_path / "rest", ckpt_path=tmp_path / "whole" / f"step={done}.ckpt") == whole[done:]
