"""A Loader in Lightning's Trainer."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn, optim

from decodeonce import Batch, Loader
from decodeonce.loader.order import Shuffle
from tests.conftest import COUNT
from tests.libraries import library

SIZE = 8
STEPS = COUNT // SIZE
Seen = list[tuple[int, int, list[int]]]


def fit(
    store: Path,
    folder: Path,
    *,
    ckpt_path: Path | None = None,
    every: int | None = None,
    shuffle: Shuffle = "full",
    **settings: Any,
) -> Seen:
    """Train three epochs, and save a checkpoint after each, or after `every` steps.

    Return Lightning's epoch, the epoch of the batch and its rows for each step.
    """
    lightning = library("pytorch_lightning")
    seen: Seen = []

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def train_dataloader(self) -> Loader:
            return Loader(store, batch_size=SIZE, shuffle=shuffle)

        def training_step(self, batch: Batch, number: int) -> Tensor:
            seen.append((self.current_epoch, batch.epoch, batch.rows.tolist()))
            images, labels = batch
            return nn.functional.cross_entropy(self.layer(images.float().mean((1, 2)) / 255), labels)

        def configure_optimizers(self) -> optim.Optimizer:
            return optim.SGD(self.parameters(), 0.1)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    keep = lightning.callbacks.ModelCheckpoint(
        folder, every_n_train_steps=every, save_top_k=-1, filename="{step}" if every else "{epoch}"
    )
    settings = {"max_epochs": 3, **settings}
    trainer = lightning.Trainer(callbacks=[keep], default_root_dir=folder, **quiet, **settings)
    trainer.fit(Model(), ckpt_path=ckpt_path)
    return seen


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings", [{}, {"reload_dataloaders_every_n_epochs": 1}, {"limit_train_batches": 5}], ids=str
)
def test_run_resumes_at_the_next_epoch_from_a_default_checkpoint(
    store: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    steps = settings.get("limit_train_batches", STEPS)
    whole = fit(store, tmp_path, **settings)
    assert [(theirs, ours) for theirs, ours, _ in whole] == [(epoch, epoch) for epoch in range(3) for _ in range(steps)]
    assert whole[0][2] != whole[steps][2]
    assert fit(store, tmp_path / "rest", ckpt_path=tmp_path / "epoch=1.ckpt", **settings) == whole[2 * steps :]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_run_resumes_within_an_epoch(store: Path, tmp_path: Path) -> None:
    whole, done = fit(store, tmp_path, every=1), STEPS + 4
    assert fit(store, tmp_path / "rest", ckpt_path=tmp_path / f"step={done}.ckpt", every=1) == whole[done:]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_overfitting_takes_the_first_rows_in_each_epoch(store: Path, tmp_path: Path) -> None:
    seen = fit(store, tmp_path, shuffle="none", overfit_batches=2)
    first = [list(range(SIZE)), list(range(SIZE, 2 * SIZE))]
    assert [rows for _, _, rows in seen] == 3 * first


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"overfit_batches": 2}, [2]),
        ({"limit_train_batches": 3, "max_epochs": 5}, [3]),
        ({"limit_train_batches": 3, "max_epochs": 2}, []),
        ({}, []),
        ({"overfit_batches": 2, "shuffle": "none"}, []),
    ],
    ids=str,
)
def test_epochs_that_lightning_leaves_after_the_same_step_are_named_once(
    store: Path, tmp_path: Path, settings: dict[str, Any], warned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    seen = fit(store, tmp_path, **settings)
    steps = settings.get("overfit_batches", settings.get("limit_train_batches", STEPS))
    assert (seen[0][2] == seen[steps][2]) is ("shuffle" in settings)
    found = [one.getMessage().partition(",")[0] for one in caplog.records if one.name == "decodeonce"]
    assert found == [f"{store}: Lightning leaves each epoch after {steps} of {STEPS} steps" for steps in warned]
