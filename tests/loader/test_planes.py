"""Loaders and augmentations of yuv420 stores give the RGB images that the rows describe."""

import dataclasses
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
from decodeonce.loader.planes import Planes, to_rgb
from decodeonce.loader.readers import ReaderName, make_reader
from tests.images import make_image
from tests.loader.augmenting import batch_of
from tests.stores import make_store, packed_row, unpacked_row

COUNT, HEIGHT, WIDTH = 12, 22, 18
PLANES = Planes(HEIGHT, WIDTH)


def drawn_images() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.stack([np.asarray(make_image(WIDTH, HEIGHT, seed=seed)) for seed in range(COUNT)])


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return torch.from_numpy(np.stack([packed_row(image) for image in drawn_images()]))


@pytest.fixture(scope="module")
def images(rows: Tensor) -> Tensor:
    return torch.from_numpy(np.stack([unpacked_row(row, HEIGHT, WIDTH) for row in rows.numpy()]))


@pytest.fixture(scope="module")
def masks() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 9, (COUNT, HEIGHT, WIDTH), np.uint8))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, masks: Tensor) -> Path:
    root = tmp_path_factory.mktemp("stores") / "half.store"
    return make_store(root, drawn_images(), shard_rows=5, paired={"mask": masks.numpy()}, pixels="yuv420")


@pytest.fixture(scope="module")
def plain_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stores") / "plain.store", drawn_images(), pixels="yuv420")


def test_unpacked_rows_are_the_images(rows: Tensor, images: Tensor) -> None:
    assert torch.equal(PLANES.unpack(rows), images)
    for wrong in (rows[0], rows[:, 1:], rows.int(), images):
        with pytest.raises(ValueError, match=r"expected uint8 \(rows, 594\) for images of 22x18"):
            PLANES.unpack(wrong)


@given(st.data())
def test_windows_of_every_parity_are_parts_of_the_image(rows: Tensor, images: Tensor, data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, HEIGHT)), data.draw(st.integers(1, WIDTH))
    top, left = data.draw(st.integers(0, HEIGHT - height)), data.draw(st.integers(0, WIDTH - width))
    window = PLANES.window(rows[3], top, left, height, width)
    assert torch.equal(window, PLANES.channels(rows)[3, top : top + height, left : left + width])
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


def test_stored_pixels(store: Path, rows: Tensor, masks: Tensor, images: Tensor) -> None:
    for batch in Loader(store, batch_size=5, pixels="stored"):
        assert batch.planes == PLANES
        assert torch.equal(batch.images, rows[batch.rows])
        assert torch.equal(batch["mask"], masks[batch.rows])
        assert torch.equal(batch.planes.unpack(batch.images), images[batch.rows])


def test_datasets_have_images(store: Path, images: Tensor, masks: Tensor) -> None:
    image, _, mask = StoreDataset(store, columns=["mask"])[3]
    assert torch.equal(image, images[3])
    assert torch.equal(mask, masks[3])


def test_stored_pixels_of_rgb_are_images(tmp_path: Path) -> None:
    path = make_store(tmp_path / "rgb.store", drawn_images())
    batch = next(iter(Loader(path, batch_size=5, pixels="stored")))
    assert (batch.planes, batch.images.shape) == (None, (5, HEIGHT, WIDTH, 3))


def test_slots_hold_half_the_bytes_for_augment(plain_store: Path) -> None:
    made, _ = make_reader(open_store(plain_store), "mmap", 1, verify=False)
    loader = Loader(plain_store, batch_size=5, transform=Augment(CenterCrop(8)))
    assert loader._delivery.slots.take().pixels.shape == (5, HEIGHT * WIDTH * 3 // 2) == (5, made.row_bytes)
    loader.close()


# --- Augment


def leave_out_columns(image: Tensor) -> Tensor:
    return image[:, 2:]


def both(rows: Tensor, images: Tensor, *steps: Step, **settings: Any) -> tuple[Tensor, Tensor]:
    """Images that are augmented as planes and as RGB."""
    augment = Augment(*steps, seed=5, **settings)
    found = augment(dataclasses.replace(batch_of(rows, epoch=1), planes=PLANES))
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
def test_views_of_planes(plain_store: Path, images: Tensor, keep: bool) -> None:
    views = Views(Augment(CenterCrop(8)), Augment(RandomFlip(), seed=2), images=keep)
    batch = next(iter(Loader(plain_store, batch_size=6, transform=views)))
    assert batch.planes is None
    assert torch.equal(batch.images, images[batch.rows] if keep else images[:0])
    assert torch.equal(batch.views[0].permute(0, 2, 3, 1), images[batch.rows, 7:15, 5:13])
    assert batch.views[1].shape == (6, 3, HEIGHT, WIDTH)


class KeepOriginals(Augment):
    def __call__(self, batch: Batch) -> Batch:
        return dataclasses.replace(super().__call__(batch), views=(batch.images.clone(),))


def test_other_transforms_get_images(plain_store: Path, images: Tensor) -> None:
    loader = Loader(plain_store, batch_size=6, transform=lambda batch: dataclasses.replace(batch))
    batch = next(iter(loader))
    assert torch.equal(batch.images, images[batch.rows])
    batch = next(iter(Loader(plain_store, batch_size=6, transform=KeepOriginals(CenterCrop(8)))))
    assert torch.equal(batch.views[0], images[batch.rows])
