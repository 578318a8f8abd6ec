"""A Loader in the Trainer of Hugging Face's transformers, as its page shows it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodeonce import Loader
from tests.libraries import library

ACCUMULATED = 4


def train(store: Path, folder: Path, *, checkpoint: Path | None = None) -> list[list[list[int]]]:
    """Train two epochs of eight steps. Return the rows of the batches of each update."""
    transformers = library("transformers")
    updates: list[list[list[int]]] = [[]]
    loader = Loader(store, batch_size=6, steps=2 * ACCUMULATED)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": nn.functional.cross_entropy(self.layer(images.float().mean((1, 2))), labels)}

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Loader:
            return loader

        def training_step(self, model: nn.Module, inputs: Any, *rest: Any) -> Any:
            updates[-1].append(inputs.rows.tolist())
            return super().training_step(model, inputs.as_dict(), *rest)

    class Callback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            updates.append([])

        def on_save(self, args: Any, state: Any, _: Any, **__: Any) -> None:
            torch.save(loader.state_dict(), f"{args.output_dir}/checkpoint-{state.global_step}/loader.pt")

    settings = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_steps": 1, "ignore_data_skip": True}
    accumulation = {"gradient_accumulation_steps": ACCUMULATED, "num_train_epochs": 2}
    args = transformers.TrainingArguments(str(folder), **settings, **accumulation)
    if checkpoint:
        loader.load_state_dict(torch.load(checkpoint / "loader.pt"))
    trainer = Trainer(Model(), args, train_dataset=loader.dataset, callbacks=[Callback()])
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    assert updates.pop() == []  # no gradient is left
    return updates


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_every_update_is_made_with_accumulation_and_after_a_resume(store: Path, tmp_path: Path) -> None:
    whole = train(store, tmp_path / "whole")
    assert [len(batches) for batches in whole] == [ACCUMULATED] * 4
    for done in (1, 2, 3):
        rest = train(store, tmp_path / str(done), checkpoint=tmp_path / "whole" / f"checkpoint-{done}")
        assert rest == whole[done:]
