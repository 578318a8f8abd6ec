"""Augmentations on the device give the results of the host: bit-identical if only moved, else within a level."""

import dataclasses
import os
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._triton import has_triton

from decodeonce import Batch, Planes
from decodeonce.augment import (
    Augment,
    CenterCrop,
    ColorJitter,
    CutMix,
    Draws,
    GaussianBlur,
    MixUp,
    Normalize,
    OneOf,
    PerBatch,
    PerImage,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomGrayscale,
    RandomResizedCrop,
    Solarize,
    Step,
    Views,
)
from decodeonce.loader.augment import fused
from decodeonce.loader.blocks import Blocks
from tests.loader.augmenting import batch_of
from tests.stores import packed_row, random_images

COUNT = 64


@pytest.fixture(params=["highest", "high", "autocast"])
def precision(request: pytest.FixtureRequest, device: torch.device) -> Iterator[str]:
    """Settings of training scripts that let torch multiply matrices at reduced precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if request.param == "highest" else "high")
    with torch.autocast(device.type, torch.bfloat16, enabled=request.param == "autocast"):
        yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.fixture(params=["triton", "torch"])
def kernel(request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> str:
    """What crops, flips, normalizes and changes colors."""
    if request.param == "torch":
        monkeypatch.setattr(fused, "TYPES", [])
    elif not has_triton() or not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        pytest.skip("the kernel needs Triton and a C compiler")
    return request.param  # type: ignore[no-any-return]


def test_kernel_runs_where_triton_does(device: torch.device, kernel: str) -> None:
    colors = ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(), Solarize(), GaussianBlur(5)
    on_both(device, RandomCrop(30), RandomResizedCrop(24), RandomFlip(), *colors, Normalize("imagenet"))
    assert fused.choice(device)["kernel"] == kernel, fused.choice(device)["why"]


def noise(height: int = 40, width: int = 36) -> Tensor:
    return torch.from_numpy(random_images(COUNT, shape=(height, width, 3)))


def on_both(device: torch.device, *steps: Step, images: Tensor | None = None) -> tuple[Batch, Batch]:
    """A batch that is augmented on the host, and one that is augmented on the device and then copied to the host."""
    batch, augment = batch_of(noise() if images is None else images, epoch=1), Augment(*steps, seed=4)
    on_device = augment(batch.to(device))
    assert {tensor.device for tensor in on_device.tensors()} == {device}
    assert on_device.images.is_contiguous(memory_format=torch.channels_last)
    return augment(batch), on_device.to("cpu")


def largest_difference(first: Tensor, second: Tensor) -> float:
    assert (first.shape, first.dtype) == (second.shape, second.dtype)
    return float((first.double() - second.double()).abs().max())


@pytest.mark.usefixtures("kernel")
def test_random_numbers_are_bit_identical(device: torch.device) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 2**62, 10_000))
    for key in (0, 5, 2**63, 2**64 - 1):
        assert torch.equal(Draws(key, rows.to(device)).uniform(22).cpu(), Draws(key, rows).uniform(22))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("size", [(256, 256), (180, 320), (321, 100), (8, 6), (1, 1)])
def test_windows_are_bit_identical(device: torch.device, size: tuple[int, int]) -> None:
    rows = torch.arange(20_000)
    step = RandomResizedCrop(9)
    assert torch.equal(step.windows(Draws(5, rows.to(device)), *size).cpu(), step.windows(Draws(5, rows), *size))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    "steps",
    [
        [CenterCrop(20)],
        [RandomCrop((20, 17))],
        [RandomFlip()],
        [CutMix(1.0, 3)],
        [RandomCrop(30), RandomFlip(), CenterCrop((21, 9))],
    ],
)
def test_moved_pixels_are_bit_identical(device: torch.device, steps: list[Step]) -> None:
    expected, found = on_both(device, *steps)
    assert torch.equal(found.images, expected.images)
    assert torch.allclose(found.labels.double(), expected.labels.double(), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("precision", "kernel")
@pytest.mark.parametrize("step", [RandomCrop((21, 17)), RandomFlip(), RandomResizedCrop(24)], ids=repr)
@pytest.mark.parametrize("planes", [Planes(40, 36), Blocks(40, 32)], ids=lambda planes: planes.pixels)
def test_planes_become_the_images_of_the_host(device: torch.device, planes: Planes, step: Step) -> None:
    images = noise()[:, :, : planes.width].numpy()
    rows = torch.from_numpy(np.stack([packed_row(image, planes.pixels) for image in images]))
    assert torch.equal(planes.unpack(rows.to(device)).cpu(), planes.unpack(rows))
    batch = dataclasses.replace(batch_of(rows, epoch=1), planes=planes)
    expected, found = (Augment(step, seed=4)(one).images.cpu() for one in (batch, batch.to(device)))
    assert largest_difference(expected, found) <= (4 if isinstance(step, RandomResizedCrop) else 0)


@pytest.mark.parametrize("size", [(32, 32), (70, 33), (9, 110), (224, 224), (1, 5)])
@pytest.mark.usefixtures("precision", "kernel")
def test_resized_pixels_are_close(device: torch.device, size: tuple[int, int]) -> None:
    expected, found = on_both(device, RandomResizedCrop(size))
    assert largest_difference(found.images, expected.images) <= 1
    assert abs(float((found.images.double() - expected.images.double()).mean())) < 1 / 4


@pytest.mark.usefixtures("precision", "kernel")
def test_resized_floats_are_close(device: torch.device) -> None:
    expected, found = on_both(device, Normalize("imagenet"), RandomResizedCrop(24))
    assert largest_difference(found.images, expected.images) < 1e-4


@pytest.mark.usefixtures("precision", "kernel")
def test_white_stays_white(device: torch.device) -> None:
    white = torch.full((COUNT, 40, 36, 3), 255, dtype=torch.uint8)
    _, found = on_both(device, RandomResizedCrop(24), images=white)
    assert found.images.min() == 255


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_normalized_pixels_are_close(device: torch.device, dtype: torch.dtype) -> None:
    expected, found = on_both(device, RandomFlip(), Normalize("imagenet", dtype=dtype))
    assert found.images.dtype == dtype
    assert torch.allclose(found.images, expected.images, rtol=torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.parametrize("step", [MixUp(0.4, 3), OneOf(MixUp(0.4, 3), CutMix(1.0, 3), weights=(1, 2))])
def test_mixed_pixels_differ_by_at_most_one_level(device: torch.device, step: Step) -> None:
    expected, found = on_both(device, step)
    assert largest_difference(found.images, expected.images) <= 1
    assert largest_difference(found.labels, expected.labels) < 1e-6


@pytest.mark.usefixtures("precision", "kernel")
@pytest.mark.parametrize(
    "step",
    [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.5), Solarize(p=0.5), GaussianBlur(9, p=0.5), RandomErasing()],
    ids=repr,
)
def test_changed_colors_differ_by_at_most_one_level(device: torch.device, step: Step) -> None:
    on_host, on_device = on_both(device, step)
    assert largest_difference(on_device.images, on_host.images) <= 1


def test_views_are_bit_identical(device: torch.device) -> None:
    flip = Augment(RandomFlip(), seed=4)
    batch, views = batch_of(noise()), Views(flip, flip, Augment(RandomCrop(20)))
    on_host, on_device = views(batch), views(batch.to(device))
    assert {view.device for view in on_device.views} == {device}
    assert all(map(torch.equal, on_device.to("cpu").views, on_host.views))


def test_boxes_are_bit_identical(device: torch.device) -> None:
    corners = np.random.default_rng(0).uniform(0, 30, (COUNT, 5, 2))
    boxes = torch.from_numpy(np.concatenate([corners, corners + 6], 2).astype(np.float32))
    columns = {"boxes": boxes, "box_labels": torch.ones((COUNT, 5), dtype=torch.int64)}
    batch = dataclasses.replace(batch_of(noise(), epoch=1), columns=columns)
    augment = Augment(RandomResizedCrop((31, 27)), RandomFlip(), RandomCrop(25), CenterCrop(20), seed=4)
    expected, found = augment(batch).columns, augment(batch.to(device)).columns
    for name in columns:
        assert torch.equal(found[name].cpu(), expected[name])


def drawn_on_the_host(image: Tensor) -> Tensor:
    return image ^ torch.randint(256, (1,)).to(image)


def drawn_on_the_device(image: Tensor) -> Tensor:
    return image ^ torch.randint(256, (1,), dtype=torch.uint8, device=image.device)


def test_transforms_of_other_libraries_draw_the_same_on_host_and_device(device: torch.device) -> None:
    arrays = PerImage(lambda image: image[::-1], takes="numpy")
    on_host, on_device = on_both(device, PerImage(drawn_on_the_host), PerBatch(drawn_on_the_host), arrays)
    assert torch.equal(on_host.images, on_device.images)


def test_draws_on_the_device_are_seeded_by_row(device: torch.device) -> None:
    batch, augment = batch_of(noise()).to(device), Augment(PerImage(drawn_on_the_device), seed=4)
    state = torch.get_device_module(device).get_rng_state()
    expected = augment(batch).images
    half = {"images": batch.images[32:], "labels": batch.labels[32:], "rows": batch.rows[32:], "valid": 32}
    assert torch.equal(augment(dataclasses.replace(batch, **half)).images, expected[32:])  # type: ignore[arg-type]
    assert torch.equal(torch.get_device_module(device).get_rng_state(), state)
