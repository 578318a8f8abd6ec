"""StoreDataset with torch's DataLoader."""

import dataclasses
import inspect
import pickle
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, WeightedRandomSampler

from decodeonce import Batch, Loader, StoreDataset, StoreError, open_store
from decodeonce.augment import Normalize
from decodeonce.loader.arguments import DATA_LOADER_WORDS
from tests.conftest import COUNT
from tests.libraries import library
from tests.stores import make_store, random_images


def invert(image: Tensor) -> Tensor:
    return 255 - image


def test_item_is_image_and_label(store: Path, images: NDArray[np.uint8]) -> None:
    dataset = StoreDataset(store)
    assert len(dataset) == COUNT
    for row in (0, 24, 25, COUNT - 1, -1):
        image, label = dataset[row]
        assert (image.dtype, tuple(image.shape)) == (torch.uint8, (8, 6, 3))
        assert np.array_equal(image.numpy(), images[row])
        assert label == row % 3
        assert type(label) is int
        image.zero_()  # the image is a copy, so this does not change the store
    assert np.array_equal(dataset[0][0].numpy(), images[0])
    with pytest.raises(IndexError, match=f"rows {COUNT}"):
        dataset[COUNT]


def test_transform_returns_the_image(store: Path, images: NDArray[np.uint8]) -> None:
    (_, first), (image, second) = StoreDataset(open_store(store), transform=invert).__getitems__([4, 2])
    assert np.array_equal(image.numpy(), 255 - images[2])
    assert (first, second) == (1, 2)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])  # spawn imports torch
def test_worker_processes_read_the_same_rows(store: Path, images: NDArray[np.uint8], method: str) -> None:
    dataset = StoreDataset(store, transform=invert)
    assert dataset[3][1] == 0  # opens files here; worker processes must open them again
    batches = list(DataLoader(dataset, 7, num_workers=2, multiprocessing_context=method))
    assert np.array_equal(torch.cat([batch[0] for batch in batches]).numpy(), 255 - images)
    assert torch.cat([batch[1] for batch in batches]).tolist() == [row % 3 for row in range(COUNT)]


def test_each_batch_is_read_at_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[list[int]] = []
    dataset = StoreDataset(store)
    take = dataset.store.images.take

    def note(rows: list[int], out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        taken.append(rows)
        return take(rows, out)

    monkeypatch.setattr(dataset.store.images, "take", note)
    list(DataLoader(dataset, 25))
    assert taken == [list(range(25)), list(range(25, 50)), list(range(50, 60))]


def test_dataset_has_classes_and_targets_like_image_folder(store: Path) -> None:
    dataset = StoreDataset(store)
    assert dataset.classes == ["class0", "class1", "class2"]
    assert repr(dataset) == f"<StoreDataset of {dataset.store!r}>"
    assert dataset.class_to_idx == {"class0": 0, "class1": 1, "class2": 2}
    assert dataset.targets == [dataset[row][1] for row in range(COUNT)]
    assert type(dataset.targets) is list
    assert {type(target) for target in dataset.targets} == {int}
    balanced = WeightedRandomSampler([1 / dataset.targets.count(target) for target in dataset.targets], 9)
    assert len(next(iter(DataLoader(dataset, 9, sampler=balanced)))[1]) == 9


def test_dataset_gives_columns_after_the_label(tmp_path: Path) -> None:
    masks, weights = np.arange(20 * 4, dtype=np.uint8).reshape(20, 2, 2), np.linspace(0, 1, 20, dtype="<f4")
    store = make_store(tmp_path / "s", random_images(20), columns={"mask": masks, "weight": weights})
    dataset = pickle.loads(pickle.dumps(StoreDataset(store, columns=["weight", "mask"])))
    _, label, weight, mask = dataset[7]
    assert (label, weight, mask.tolist()) == (StoreDataset(store)[7][1], weights[7], masks[7].tolist())
    batches = list(DataLoader(dataset, 8, num_workers=1))
    np.testing.assert_array_equal(torch.cat([batch[2] for batch in batches]), weights)
    np.testing.assert_array_equal(torch.cat([batch[3] for batch in batches]), masks)
    with pytest.raises(StoreError, match="no column 'boxes', expected one of its columns: mask, weight"):
        StoreDataset(store, columns=["boxes"])


def test_loader_has_the_dataset_of_its_rows(store: Path, images: NDArray[np.uint8]) -> None:
    with Loader(store, batch_size=4) as loader:
        assert len(loader.dataset) == COUNT
        assert loader.dataset is loader.dataset
    with Loader(store, batch_size=4, rows=[5, 3, 8], rank=1, world_size=2, partition="range", tail="keep") as loader:
        assert [image.tolist() for image, _ in DataLoader(loader.dataset, None)] == images[[3, 5, 8]].tolist()


def test_loader_names_its_own_word_for_each_argument_of_data_loader(store: Path) -> None:
    words = set(inspect.signature(DataLoader).parameters) - set(inspect.signature(Loader).parameters)
    assert words
    for word in words | {"in_order"}:  # torch 2.6 has no in_order
        with pytest.raises(TypeError, match=f"Loader has no such arguments of torch's DataLoader; {word}: pass "):
            Loader(store, batch_size=4, **dict[str, Any]({word: 1}))
    with pytest.raises(TypeError, match="sampler: pass weights to draw rows by weight, rows for a subset, or shuffle"):
        Loader(store, batch_size=4, **dict[str, Any](sampler=None))
    with pytest.raises(TypeError, match='num_workers: pass threads; drop_last: pass tail="drop"'):
        Loader(store, batch_size=4, **dict[str, Any](num_workers=8, drop_last=True))
    assert not DATA_LOADER_WORDS.keys() & inspect.signature(Loader).parameters.keys()
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        Loader(store, batch_size=4, **dict[str, Any](batchsize=4))
    shuffles: dict[Any, str] = {True: "full", False: "none"}
    for shuffle, name in shuffles.items():
        with pytest.raises(TypeError, match=f'shuffle is {shuffle} as for torch\'s DataLoader; pass "{name}"'):
            Loader(store, batch_size=4, shuffle=shuffle)


def test_second_argument_without_a_name_is_refused_with_its_name(store: Path) -> None:
    loader, normalize = cast("Any", Loader), cast("Any", Normalize)
    with pytest.raises(
        TypeError, match=r"Loader takes one argument without a name; name the others, such as batch_si.*=8"
    ):
        loader(store, 8)
    with pytest.raises(
        TypeError, match=r"Normalize takes one .*; pass mean and std as a pair: Normalize\(\(mean, std\)\)"
    ):
        normalize((0.5,), (0.5,))


# ---- A Batch by name: its columns, its dict for models, and its repr

IMAGES, LABELS, ROWS = torch.zeros(4, 8, 6, 3, dtype=torch.uint8), torch.arange(4), torch.arange(4) + 7
MASKS, ROWS_COLUMN = torch.ones(4, 8, 6, dtype=torch.uint8), torch.zeros(4)
BATCH = Batch(IMAGES, LABELS, ROWS, 3, 2, {"mask": MASKS, "rows": ROWS_COLUMN})


def test_loader_in_a_data_loader_says_what_to_do(store: Path) -> None:
    with pytest.raises(TypeError, match="iterate over it, without a DataLoader; for samples, use StoreDataset"):
        next(iter(DataLoader(Loader(store, batch_size=4), batch_size=None)))  # type: ignore[arg-type]


def test_tensors_have_names() -> None:
    assert BATCH["mask"] is MASKS
    assert (BATCH["images"], BATCH["labels"]) == tuple(BATCH)
    assert BATCH["rows"] is ROWS  # a column of the same name is only in `columns`
    assert "mask" in BATCH
    assert "boxes" not in BATCH
    for name in ("boxes", 0):
        with pytest.raises(KeyError, match=f"the batch has no {name!r}, expected one of: images, labels, rows, mask"):
            _ = BATCH[name]  # type: ignore[index]


def test_dict_has_images_labels_and_columns_under_the_names_of_a_model() -> None:
    assert BATCH.as_dict() == {"images": IMAGES, "labels": LABELS, "mask": MASKS}
    assert BATCH.as_dict(images="pixel_values") == {"pixel_values": IMAGES, "labels": LABELS, "mask": MASKS}
    assert BATCH.as_dict(mask="labels") == {"images": IMAGES, "labels": MASKS}
    assert BATCH.as_dict(images="labels", labels="images")["labels"] is IMAGES
    assert BATCH.as_dict(rows="index")["index"] is ROWS
    with pytest.raises(KeyError, match="the batch has no 'image', expected one of: images"):
        BATCH.as_dict(image="pixel_values")


def test_repr_counts_views_of_each_shape() -> None:
    large, small = torch.zeros(3, 3, 8, 8), torch.zeros(3, 3, 4, 4)
    batch = dataclasses.replace(BATCH, images=IMAGES[:0], columns={"mask": MASKS}, views=(large, large, *[small] * 8))
    views = "2 views of float32 (3, 3, 8, 8), 8 views of float32 (3, 3, 4, 4)"
    named = f"labels int64 (4,), mask uint8 (4, 8, 6), {views}"
    assert repr(batch) == f"<Batch {named}; 3 of 4 rows valid, epoch 2, on cpu>"
    assert "<Batch images uint8 (4, 8, 6, 3), labels" in repr(dataclasses.replace(batch, images=IMAGES))


# ---- Loaders with accelerate, which has no special code for them

SIZE = 4
STEPS = COUNT // SIZE


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_batch_moves_all_tensors(store: Path, weights: Literal["balanced"] | None) -> None:
    batch = next(iter(Loader(store, batch_size=SIZE, weights=weights)))
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in moved.tensors()} == {"meta"}
    assert (moved.positions is None) == (batch.positions is None) == (weights is None)
    assert len(moved.tensors()) == len(batch.tensors()) == (3 if weights is None else 4)
    assert (moved.valid, moved.epoch) == (batch.valid, batch.epoch)
    assert batch.to("cpu", non_blocking=True).images is batch.images


def test_iterator_without_batches_does_not_count_as_epoch(store: Path) -> None:
    with Loader(store, batch_size=SIZE) as loader, Loader(store, batch_size=SIZE) as resumed:
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
    with Loader(store, batch_size=SIZE) as loader, Loader(store, batch_size=SIZE) as resumed:
        saving, loading = accelerate.Accelerator(cpu=True), accelerate.Accelerator(cpu=True)
        assert saving.prepare(loader) is loader
        saving.register_for_checkpointing(loader)
        loading.register_for_checkpointing(resumed)
        loader.set_epoch(1)
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        saving.save_state(tmp_path / "checkpoint")
        loading.load_state(tmp_path / "checkpoint")
        assert (resumed.epoch, resumed.steps_left) == (1, STEPS - 4)
        assert [batch.rows.tolist() for batch in resumed] == [batch.rows.tolist() for batch in batches]
