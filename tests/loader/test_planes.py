"""Loaders and augmentations of yuv420 and bc4 stores give the RGB images that the rows describe."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decodeonce import Batch, Loader, StoreDataset, open_store
from decodeonce.augment import (
    Augment,
    CenterCrop,
    ColorJitter,
    MixUp,
    Normalize,
    PerImage,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Step,
    Views,
)
from decodeonce.loader.augment import augment as augment_module
from decodeonce.loader.augment import fused
from decodeonce.loader.blocks import Blocks
from decodeonce.loader.planes import Planes, to_rgb
from decodeonce.loader.readers import Choice, ReaderName, make_reader
from tests.images import make_image
from tests.loader.augmenting import batch_of
from tests.stores import make_store, packed_row, random_images, unpacked_row

COUNT = 12


@pytest.fixture(scope="module", params=[Planes(22, 18), Blocks(24, 16)], ids=lambda form: form.pixels)
def form(request: pytest.FixtureRequest) -> Planes:
    form: Planes = request.param
    return form


@pytest.fixture(scope="module")
def drawn(form: Planes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.stack([np.asarray(make_image(form.width, form.height, seed=seed)) for seed in range(COUNT)])


@pytest.fixture(scope="module")
def rows(form: Planes, drawn: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.stack([packed_row(image, form.pixels) for image in drawn]))


@pytest.fixture(scope="module")
def images(form: Planes, rows: Tensor) -> Tensor:
    size = form.height, form.width, form.pixels
    return torch.from_numpy(np.stack([unpacked_row(row, *size) for row in rows.numpy()]))


@pytest.fixture(scope="module")
def masks(form: Planes) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 9, (COUNT, *form.shape[:2]), np.uint8))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, form: Planes, drawn: Any, masks: Tensor) -> Path:
    root = tmp_path_factory.mktemp("stores") / "packed.store"
    return make_store(root, drawn, shard_rows=5, paired={"mask": masks.numpy()}, pixels=form.pixels)


@pytest.fixture(scope="module")
def plain_store(tmp_path_factory: pytest.TempPathFactory, form: Planes, drawn: Any) -> Path:
    return make_store(tmp_path_factory.mktemp("stores") / "plain.store", drawn, pixels=form.pixels)


def test_unpacked_rows_are_the_images(form: Planes, rows: Tensor, images: Tensor) -> None:
    assert torch.equal(form.unpack(rows), images)
    expected = {"yuv420": "594) for images of 22x18", "bc4": "288) for images of 24x16"}[form.pixels]
    for wrong in (rows[0], rows[:, 1:], rows.int(), images):
        with pytest.raises(ValueError, match=re.escape(f"expected uint8 (rows, {expected}")):
            form.unpack(wrong)


@given(st.data())
def test_windows_of_every_parity_are_parts_of_the_image(
    form: Planes, rows: Tensor, images: Tensor, data: st.DataObject
) -> None:
    height, width = data.draw(st.integers(1, form.height)), data.draw(st.integers(1, form.width))
    top, left = data.draw(st.integers(0, form.height - height)), data.draw(st.integers(0, form.width - width))
    window = form.window(rows[3], top, left, height, width)
    assert torch.equal(window, form.channels(rows)[3, top : top + height, left : left + width])
    assert torch.equal(to_rgb(window), images[3, top : top + height, left : left + width])


# --- Loader


@pytest.mark.parametrize("reader", [name for name in get_args(ReaderName) if name != "auto"])
@pytest.mark.parametrize("verify", [False, True])
def test_batches_are_rgb(store: Path, images: Tensor, masks: Tensor, reader: ReaderName, verify: bool) -> None:
    with Loader(store, batch_size=5, tail="keep", reader=reader, threads=2, verify=verify) as loader:
        for batch in loader:
            assert torch.equal(batch.images, images[batch.rows])
            assert torch.equal(batch["mask"], masks[batch.rows])
            assert batch.planes is None


def test_batches_of_images_alone_are_contiguous(plain_store: Path, images: Tensor) -> None:
    batch = next(iter(Loader(plain_store, batch_size=5)))
    assert torch.equal(batch.images, images[batch.rows])
    assert batch.images.is_contiguous()


@pytest.mark.parametrize("path", ["store", "plain_store"])
def test_device_unpacks_what_it_caches(path: str, images: Tensor, request: pytest.FixtureRequest) -> None:
    with Loader(request.getfixturevalue(path), batch_size=5, cache="device") as loader:
        for _ in range(2):
            assert all(torch.equal(batch.images, images[batch.rows]) for batch in loader)


def test_stored_pixels(store: Path, form: Planes, rows: Tensor, masks: Tensor, images: Tensor) -> None:
    for batch in Loader(store, batch_size=5, pixels="stored"):
        assert batch.planes == form
        assert isinstance(batch.planes, type(form))
        assert torch.equal(batch.images, rows[batch.rows])
        assert torch.equal(batch["mask"], masks[batch.rows])
        assert torch.equal(batch.planes.unpack(batch.images), images[batch.rows])


def test_datasets_have_images(store: Path, images: Tensor, masks: Tensor) -> None:
    image, _, mask = StoreDataset(store, columns=["mask"])[3]
    assert torch.equal(image, images[3])
    assert torch.equal(mask, masks[3])


def test_stored_pixels_of_rgb_are_images(tmp_path: Path) -> None:
    path = make_store(tmp_path / "rgb.store", random_images(6, shape=(8, 6, 3)))
    batch = next(iter(Loader(path, batch_size=5, pixels="stored")))
    assert (batch.planes, batch.images.shape) == (None, (5, 8, 6, 3))


def test_slots_hold_stored_bytes_for_augment(plain_store: Path, form: Planes) -> None:
    made, _ = make_reader(open_store(plain_store), Choice("mmap", "requested"), 1, verify=False)
    loader = Loader(plain_store, batch_size=5, transform=Augment(CenterCrop(8)))
    assert loader._delivery.slots.take().pixels.shape == (5, made.row_bytes)
    assert made.row_bytes == form.height * form.width * 3 // {"yuv420": 2, "bc4": 4}[form.pixels]
    loader.close()


# --- Augment


def leave_out_columns(image: Tensor) -> Tensor:
    return image[:, 2:]


def both(rows: Tensor, images: Tensor, *steps: Step, **settings: Any) -> tuple[Tensor, Tensor]:
    """Images that are augmented as planes and as RGB."""
    augment = Augment(*steps, seed=5, **settings)
    form = (Planes if 2 * rows[0].numel() == images[0].numel() else Blocks)(*images.shape[1:3])
    found = augment(dataclasses.replace(batch_of(rows, epoch=1), planes=form))
    assert found.planes is None
    return found.images, augment(batch_of(images, epoch=1)).images


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (CenterCrop(9),),
        (RandomCrop((7, 11)), RandomFlip()),
        (RandomFlip(), RandomResizedCrop(9)),
        (Normalize("imagenet"),),
        (MixUp(0.4, num_classes=3), RandomFlip()),
        (PerImage(leave_out_columns),),
        (CenterCrop(9), ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize("imagenet")),
    ],
    ids=lambda steps: "-".join(type(step).__name__ for step in steps),
)
def test_chains_that_do_not_begin_with_a_resize_are_those_of_rgb(
    rows: Tensor, images: Tensor, steps: tuple[Step, ...]
) -> None:
    found, expected = both(rows, images, *steps)
    assert torch.equal(found, expected)


RESIZES = [(RandomResizedCrop(s, scale=(0.2, 1.0)), RandomFlip()) for s in (12, (30, 7), 1, (40, 41))]


@pytest.mark.parametrize("steps", RESIZES, ids=str)
def test_resized_planes_differ_little_from_resized_rgb(rows: Tensor, images: Tensor, steps: tuple[Step, ...]) -> None:
    found, expected = both(rows, images, *steps)
    levels = (found.int() - expected.int()).abs()
    assert levels.float().mean() < 1.2  # colors outside of RGB are clipped after the resize instead of before


def assert_close(found: Tensor, expected: Tensor) -> None:
    """A level in V or U is up to two in R, G and B."""
    levels = (found.int() - expected.int()).abs()
    assert levels.max() <= 4
    assert levels.float().mean() < 0.5


@pytest.mark.parametrize("steps", RESIZES, ids=str)
def test_device_code_agrees_with_the_cpu(
    rows: Tensor, images: Tensor, steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = both(rows, images, *steps)
    monkeypatch.setattr(augment_module, "_later", lambda *_: None)  # as on a device without a kernel
    found, _ = both(rows, images, *steps)
    assert_close(found, expected)


@pytest.mark.parametrize("steps", [*RESIZES[:2], (RandomCrop((7, 11)), RandomFlip()), (RandomFlip(),)], ids=str)
def test_kernel_agrees_with_the_cpu(
    rows: Tensor, images: Tensor, steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton comes only with torch's builds for accelerators")
    rows, images = rows[:4], images[:4]  # Triton's interpreter is slow
    expected, _ = both(rows, images, *steps)
    monkeypatch.setattr(fused, "_problems", {})
    monkeypatch.setattr(fused, "TYPES", ["cpu"])
    found, _ = both(rows, images, *steps)
    assert fused.why_not(torch.device("cpu")) == ""
    assert_close(found, expected)
    if not isinstance(steps[0], RandomResizedCrop):
        assert torch.equal(found, expected)


def test_masks_move_with_planes(store: Path) -> None:
    augment = Augment(RandomResizedCrop(10), RandomFlip(), seed=1, paired={"mask": "nearest"})
    expected = Augment(RandomResizedCrop(10), RandomFlip(), seed=1, paired={"mask": "nearest"})
    batch = next(iter(Loader(store, batch_size=6, transform=augment)))
    plain = next(iter(Loader(store, batch_size=6)))
    assert torch.equal(batch["mask"], expected(plain)["mask"])


@pytest.mark.parametrize("keep", [False, True])
def test_views_of_planes(plain_store: Path, form: Planes, images: Tensor, keep: bool) -> None:
    views = Views(Augment(CenterCrop(8)), Augment(RandomFlip(), seed=2), images=keep)
    batch = next(iter(Loader(plain_store, batch_size=6, transform=views)))
    assert batch.planes is None
    assert torch.equal(batch.images, images[batch.rows] if keep else images[:0])
    top, left = form.height // 2 - 4, form.width // 2 - 4
    assert torch.equal(batch.views[0].permute(0, 2, 3, 1), images[batch.rows, top : top + 8, left : left + 8])
    assert batch.views[1].shape == (6, 3, form.height, form.width)


class KeepOriginals(Augment):
    def __call__(self, batch: Batch) -> Batch:
        return dataclasses.replace(super().__call__(batch), views=(batch.images.clone(),))


def test_other_transforms_get_images(plain_store: Path, images: Tensor) -> None:
    loader = Loader(plain_store, batch_size=6, transform=lambda batch: dataclasses.replace(batch))
    batch = next(iter(loader))
    assert torch.equal(batch.images, images[batch.rows])
    batch = next(iter(Loader(plain_store, batch_size=6, transform=KeepOriginals(CenterCrop(8)))))
    assert torch.equal(batch.views[0], images[batch.rows])
