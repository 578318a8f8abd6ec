"""What a Loader does with settings that its user did not think about."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from decodeonce import Loader
from decodeonce.augment import Augment, CutMix, MixUp, Normalize, RandomCrop, RandomFlip, RandomResizedCrop, Step
from tests.loader.test_color import STEPS

MOVES = (RandomResizedCrop(5), RandomCrop(5), RandomFlip(), Normalize("imagenet"), MixUp(0.4, 3), CutMix(1.0, 3))


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("step", [*STEPS, *MOVES], ids=repr)
def test_augmentation_ignores_the_default_dtype(store: Path, default_dtype: torch.dtype, step: Step) -> None:
    def batch() -> list[torch.Tensor]:
        return list(next(iter(Loader(store, batch_size=20, transform=Augment(step)))))

    expected = batch()
    torch.set_default_dtype(default_dtype)
    for one, other in zip(batch(), expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_loader_in_stored_order_yields_all_rows_by_default(store: Path) -> None:
    def rows(**settings: Any) -> int:
        return sum(batch.valid for batch in Loader(store, batch_size=16, **settings))

    assert (rows(shuffle="none"), rows(), rows(shuffle="none", tail="drop")) == (60, 48, 48)


def test_loader_that_found_another_rank_than_torch_distributed_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, given = Loader(store, batch_size=2), Loader(store, batch_size=2, rank=0, world_size=2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(
            RuntimeError, match=r"created as rank 0 of 1 \(no launcher\), but this process is rank 0 of 2"
        ):
            iter(early)
        assert len(list(Loader(store, batch_size=2))) == len(list(given)) == 15
    finally:
        torch.distributed.destroy_process_group()
