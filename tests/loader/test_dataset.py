"""StoreDataset with torch's DataLoader."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, WeightedRandomSampler

from decodeonce import Loader, StoreDataset, StoreError, open_store
from decodeonce.loader.arguments import DATA_LOADER_WORDS
from tests.conftest import COUNT
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
    dataset = StoreDataset(open_store(store), transform=invert)
    assert np.array_equal(dataset[7][0].numpy(), 255 - images[7])
    assert [label for _, label in dataset.__getitems__([4, 2])] == [1, 2]
    assert np.array_equal(dataset.__getitems__([4, 2])[1][0].numpy(), 255 - images[2])


@pytest.mark.parametrize("method", ["fork", "spawn"])
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
    given: dict[str, Any] = {"num_workers": 8, "drop_last": True}
    with pytest.raises(TypeError, match='num_workers: pass threads; drop_last: pass tail="drop"'):
        Loader(store, batch_size=4, **given)
    assert not DATA_LOADER_WORDS.keys() & inspect.signature(Loader).parameters.keys()
    given = {"batchsize": 4}
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        Loader(store, batch_size=4, **given)


@pytest.mark.parametrize(("shuffle", "name"), [(True, "full"), (False, "none")])
def test_shuffle_of_data_loader_is_refused_with_the_name_of_the_order(store: Path, shuffle: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f'shuffle is {shuffle} as for torch\'s DataLoader; pass "{name}"'):
        Loader(store, batch_size=4, shuffle=shuffle)
