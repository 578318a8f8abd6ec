"""A Batch by name: its columns, its dict for models, and its repr."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from decodeonce import Batch, Loader
from decodeonce.loader.augment import Augment, Normalize
from tests.stores import make_store, random_images

IMAGES, LABELS, ROWS = torch.zeros(4, 8, 6, 3, dtype=torch.uint8), torch.arange(4), torch.arange(4) + 7
MASKS, ROWS_COLUMN = torch.ones(4, 8, 6, dtype=torch.uint8), torch.zeros(4)
BATCH = Batch(IMAGES, LABELS, ROWS, 3, 2, {"mask": MASKS, "rows": ROWS_COLUMN})


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


def test_repr_is_one_line_of_shapes(tmp_path: Path) -> None:
    columns = {"boxes": np.zeros((50, 20, 4), "<f4")}
    store = make_store(tmp_path / "s", random_images(50, shape=(32, 32, 3)), columns=columns)
    with Loader(store, batch_size=40, tail="pad", transform=Augment(Normalize("imagenet"))) as loader:
        batches = list(loader)
    rows = "10 of 40 rows valid, epoch 0, on cpu"
    assert repr(batches[1]) == (
        f"<Batch images float32 (40, 3, 32, 32), labels int64 (40,), boxes float32 (40, 20, 4); {rows}>"
    )


def test_repr_counts_views_of_each_shape() -> None:
    large, small = torch.zeros(3, 3, 8, 8), torch.zeros(3, 3, 4, 4)
    batch = dataclasses.replace(BATCH, images=IMAGES[:0], columns={}, views=(large, large, *[small] * 8))
    views = "2 views of float32 (3, 3, 8, 8), 8 views of float32 (3, 3, 4, 4)"
    assert repr(batch) == f"<Batch labels int64 (4,), {views}; 3 of 4 rows valid, epoch 2, on cpu>"
    assert "<Batch images uint8 (4, 8, 6, 3), labels" in repr(dataclasses.replace(batch, images=IMAGES))
