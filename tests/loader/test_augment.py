"""Augmentations equal Pillow, NumPy and plain Python for the same random numbers, in any batch."""

import dataclasses
import gc
import math
import mmap
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from decodeonce import Batch, Loader, open_store
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
    PerImage,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomGrayscale,
    RandomResizedCrop,
    Solarize,
    Step,
    Views,
    ramp,
)
from decodeonce.loader import buffers
from decodeonce.loader.augment.crop import float64_device, resize_on_device, resize_rows
from decodeonce.loader.augment.rows import PendingRows
from decodeonce.loader.buffers import recycled
from decodeonce.loader.order import derive_key
from decodeonce.loader.partition import Tail
from tests.conftest import COUNT
from tests.loader.augmenting import WithoutFloat64, batch_of, by_row, draws_of, noise, run_on_device, same
from tests.stores import make_store, pixel_statistics, random_images

SIZE = (5, 4)
seeds = st.integers(-(2**70), 2**70)


def all_steps(store: Path) -> list[Step]:
    return [RandomCrop((7, 6)), RandomResizedCrop(SIZE), RandomFlip(), Normalize(store)]


# Random numbers


@given(seeds, st.integers(0, 2**40), st.integers(0, 9), st.lists(st.integers(0, 2**62), min_size=1, max_size=4))
def test_numbers_depend_on_seed_epoch_step_row_and_index(seed: int, epoch: int, step: int, rows: list[int]) -> None:
    found = Draws(derive_key(seed, epoch, step), torch.tensor(rows)).uniform(5)
    expected = [[(derive_key(seed, epoch, step, row, index) >> 40) / 2**24 for index in range(5)] for row in rows]
    assert found.dtype == torch.float32
    assert found.tolist() == expected


def test_numbers_of_rows_draws_steps_epochs_and_seeds_are_independent() -> None:
    count = 40_000
    numbers = draws_of(count).uniform(2)
    others = {
        "row": numbers[:, 0].roll(1),
        "draw": numbers[:, 1],
        "step": draws_of(count, step=1).uniform(1)[:, 0],
        "epoch": draws_of(count, epoch=1).uniform(1)[:, 0],
        "seed": draws_of(count, seed=1).uniform(1)[:, 0],
        "epoch and row": draws_of(count, epoch=1).uniform(1)[:, 0].roll(-1),
    }
    for name, other in others.items():
        correlation = torch.corrcoef(torch.stack([numbers[:, 0], other]))[0, 1]
        assert abs(correlation) < 4 / math.sqrt(count), name
        squares = torch.histogramdd(torch.stack([numbers[:, 0], other], 1), [8, 8], range=[0, 1, 0, 1]).hist
        # Chi-square with 63 degrees of freedom has mean 63 and standard deviation 11.2.
        assert ((squares - count / 64) ** 2 / (count / 64)).sum() < 110, name


# Augment


@pytest.mark.parametrize(
    ("world_size", "batch_size", "tail"), [(1, 7, "keep"), (2, 30, "drop"), (3, 4, "drop"), (2, 7, "pad")]
)
def test_augmentation_of_row_is_independent_of_batch_world_size_and_threads(
    store: Path, threads: Callable[[int], None], world_size: int, batch_size: int, tail: Tail
) -> None:
    transform = Augment(*all_steps(store), seed=4)
    threads(1)
    expected = [by_row(batches) for batches in [Loader(store, batch_size=COUNT, transform=transform)] * 2]
    found: list[dict[int, Tensor]] = [{}, {}]
    settings: dict[str, Any] = {"batch_size": batch_size, "tail": tail, "seed": 9, "transform": transform}
    for rank in range(world_size):
        threads(1 + rank)
        with Loader(store, rank=rank, world_size=world_size, **settings) as loader:
            for epoch in found:
                epoch.update(by_row(loader))
    assert all(map(same, found, expected))
    assert not same(*found)


def test_each_step_has_its_own_random_numbers() -> None:
    images = noise(64, 4, 6)
    twice = Augment(RandomFlip(), RandomFlip())(batch_of(images)).images.permute(0, 2, 3, 1)
    flips = [draws_of(64, step=step).uniform(1)[:, 0] < 0.5 for step in (0, 1)]
    expected = torch.where((flips[0] ^ flips[1])[:, None, None, None], images.flip(2), images)
    assert torch.equal(twice, expected)
    assert not torch.equal(twice, images)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("step", [CenterCrop(SIZE), RandomCrop(SIZE), RandomResizedCrop(SIZE), RandomFlip()])
def test_images_are_complete_and_channels_last(step: Step, channels: int) -> None:
    images = noise(6, *((8, 6) if not isinstance(step, RandomFlip) else SIZE), channels)
    batch = batch_of(images)
    result = Augment(step)(batch)
    assert result.images.shape == (6, channels, *SIZE)
    assert result.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result.images.permute(0, 2, 3, 1), step(images, draws_of(6)))
    assert result.images.dtype == torch.uint8
    assert (result.labels is batch.labels, result.rows is batch.rows) == (True, True)
    assert Augment()(batch).images.data_ptr() == images.data_ptr()  # permuted only


def test_input_batch_is_not_modified(store: Path) -> None:
    crop, resize, flip, normalize = all_steps(store)
    lists: list[list[Step]] = [[crop, resize, flip, normalize], [normalize, flip, resize], [CenterCrop(6)], [flip]]
    for steps, dtype in product(lists, (torch.uint8, torch.float32)):
        images = noise(9, 8, 6).to(dtype)
        before = images.clone()
        result = Augment(*steps)(batch_of(images)).images
        assert torch.equal(images, before)
        assert result.data_ptr() != images.data_ptr()


def test_steps_neither_wait_for_the_device_nor_copy_to_it(store: Path) -> None:
    shapes = {"boxes": (9, 4, 4), "box_labels": (9, 4), "mask": (9, 8, 6), "tags": (9, 4)}
    columns = {name: torch.empty(shape, dtype=torch.int64, device="meta") for name, shape in shapes.items()}
    columns["boxes"] = columns["boxes"].float()
    erase: list[Step] = [Normalize(store), RandomErasing(0.5)]
    colors: list[Step] = [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.5), Solarize(100), GaussianBlur(5), *erase]
    for steps in ([CenterCrop((8, 6)), *all_steps(store)], [RandomFlip()], [CenterCrop(4)], [RandomCrop(4)], colors):
        batch = run_on_device(Augment(*steps, paired={"mask": "nearest"}), columns)
        assert batch.columns["mask"].shape == (9, *batch.images.shape[2:])
        assert {tensor.device.type for tensor in batch.tensors()} == {"meta"}
    mix = OneOf(MixUp(0.2, 7), CutMix(1.0, 7, p=0.5), weights=(1, 2))
    mixed = run_on_device(Augment(MixUp(0.2, 7), mix, mixed=["tags"]), {"tags": columns["tags"]})
    assert mixed.labels.shape == (9, 7)
    assert {tensor.device.type for tensor in mixed.tensors()} == {"meta"}


def test_steps_need_no_float64_on_a_device() -> None:
    """Intel Arc and Apple's GPUs lack it."""
    images = torch.empty((9, 8, 6, 3), dtype=torch.uint8, device="meta")
    columns = {"mask": images[..., 0], "boxes": torch.empty((9, 4, 4), device="meta")}
    batch = dataclasses.replace(batch_of(images), columns=columns)
    augment = Augment(RandomResizedCrop(5), RandomFlip(), RandomErasing(), paired={"mask": "nearest"})
    mix = MixUp(0.7, 7), CutMix(0.7, 7), OneOf(MixUp(0.6, 7), CutMix(0.6, 7))  # whose tables no other test uses
    float64_device.cache_clear()
    with WithoutFloat64():  # type: ignore[no-untyped-call]
        found = augment(batch)
        mixed = Augment(Normalize("imagenet"), *mix)(batch_of(images))
    float64_device.cache_clear()
    assert (mixed.labels.device.type, mixed.labels.dtype) == ("meta", torch.float32)
    assert {tensor.device.type for tensor in found.tensors()} == {"meta"}
    assert (found.images.shape, found["mask"].shape, found["boxes"].dtype) == ((9, 3, 5, 5), (9, 5, 5), torch.float32)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_settings_of_the_program_do_not_change_what_a_device_computes(store: Path, dtype: torch.dtype) -> None:
    images, draws = noise(9, 40, 36).to(dtype), draws_of(9)
    steps: list[Step] = [RandomResizedCrop((30, 41)), RandomErasing(), MixUp(0.2, 3)]
    if dtype == torch.uint8:
        steps += [Normalize(store), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(), GaussianBlur(5)]
    expected = [step.on_device(images, draws) for step in steps]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", torch.bfloat16):
        found = [step.on_device(images, draws) for step in steps]
    torch.set_float32_matmul_precision(before)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


# Crops and flips

image_sizes = st.tuples(st.integers(1, 12), st.integers(1, 12))


@given(image_sizes, image_sizes)
def test_center_crop_equals_torchvision(first: tuple[int, int], second: tuple[int, int]) -> None:
    (height, out_height), (width, out_width) = (sorted(pair, reverse=True) for pair in zip(first, second, strict=True))
    images = noise(2, height, width)
    top, left = int(round((height - out_height) / 2.0)), int(round((width - out_width) / 2.0))  # noqa: RUF046
    result = CenterCrop((out_height, out_width))(images, draws_of(2))
    assert torch.equal(result, images[:, top : top + out_height, left : left + out_width])


@given(image_sizes, image_sizes, seeds)
def test_random_crops_are_at_the_drawn_positions(first: tuple[int, int], second: tuple[int, int], seed: int) -> None:
    (height, out_height), (width, out_width) = (sorted(pair, reverse=True) for pair in zip(first, second, strict=True))
    images, draws = noise(5, height, width, 2), draws_of(5, seed)
    result = RandomCrop((out_height, out_width))(images, draws)
    assert result.dtype == torch.uint8
    for image, crop, (y, x) in zip(images, result, draws.uniform(2).tolist(), strict=True):
        top, left = int(y * (height - out_height + 1)), int(x * (width - out_width + 1))
        assert torch.equal(crop, image[top : top + out_height, left : left + out_width])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("p", "channels"), [(0.0, 3), (0.25, 1), (0.25, 4), (1.0, 3)])
def test_flip_mirrors_a_share_of_the_images(p: float, channels: int, dtype: torch.dtype) -> None:
    images = noise(2000, 5, 6, channels)[:, 1:4, 1:5].to(dtype)  # its lines are not next to each other
    step, draws = RandomFlip(p), draws_of(2000)
    result, flipped = step(images, draws), draws.uniform(1)[:, 0] < p
    assert (result.dtype, result.is_contiguous()) == (dtype, True)
    assert torch.equal(result[flipped], images[flipped].flip(2))
    assert torch.equal(result[~flipped], images[~flipped])
    assert torch.equal(result, step.on_device(images, draws))
    assert abs(int(flipped.sum()) - 2000 * p) <= 4 * math.sqrt(2000 * p * (1 - p))


def test_flip_with_probability_0_never_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    images = noise(4, 3, 4)
    monkeypatch.setattr(Draws, "uniform", lambda draws, count: torch.zeros(4, count))  # the smallest possible number
    assert torch.equal(RandomFlip(0.0)(images, draws_of(4)), images)


@pytest.mark.parametrize("step", [CenterCrop, RandomCrop, RandomResizedCrop])
def test_size_can_be_a_function_of_the_epoch(step: Callable[[Any], Step]) -> None:
    images = noise(3, 12, 10)
    growing = Augment(step(lambda epoch: (4 + epoch, 5)))
    for epoch in (0, 2, 3):
        found = growing(batch_of(images, epoch)).images
        assert found.shape == (3, 3, 4 + epoch, 5)
        assert torch.equal(found, Augment(step((4 + epoch, 5)))(batch_of(images, epoch)).images)
    with pytest.raises(ValueError, match=r"size\(2\) is 0, expected a whole number of pixels"):
        Augment(step(lambda epoch: 2 - epoch))(batch_of(images, 2))


# RandomResizedCrop


def expected_window(
    numbers: list[float], height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> list[int]:
    """torchvision's RandomResizedCrop.get_params with random numbers from a list: areas, ratios, corner."""
    areas, ratios, (y, x) = numbers[:10], numbers[10:20], numbers[20:]
    for u, v in zip(areas, ratios, strict=True):
        target_area = height * width * (scale[0] + u * (scale[1] - scale[0]))
        log_ratio = math.log(ratio[0]), math.log(ratio[1])
        aspect_ratio = math.exp(log_ratio[0] + v * (log_ratio[1] - log_ratio[0]))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            return [int(y * (height - h + 1)), int(x * (width - w + 1)), h, w]
    in_ratio = width / height
    if in_ratio < min(ratio):
        w, h = width, round(width / min(ratio))
    elif in_ratio > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (256, 256, (0.08, 1.0), (3 / 4, 4 / 3)),
        (180, 320, (0.9, 1.0), (3 / 4, 4 / 3)),  # few tries fit: the image is too wide
        (321, 100, (0.5, 0.9), (0.9, 1.0)),  # no try fits: the image is too high
        (255, 254, (1.0, 1.0), (0.5, 2.0)),  # the whole image if no try fits
        (8, 6, (0.001, 0.3), (0.1, 9.0)),  # some sizes are 0
        (1, 1, (0.08, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_window_is_torchvisions(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    draws = draws_of(1000, seed=height)
    boxes = RandomResizedCrop(9, scale=scale, ratio=ratio).windows(draws, height, width)
    assert boxes.tolist() == [expected_window(row, height, width, scale, ratio) for row in draws.uniform(22).tolist()]
    top, left, box_height, box_width = boxes.unbind(1)
    assert boxes[:, :2].min() >= 0
    assert boxes[:, 2:].min() >= 1
    assert (top + box_height).max() <= height
    assert (left + box_width).max() <= width


@pytest.mark.parametrize(
    ("height", "width", "size"), [(64, 48, 32), (40, 60, (70, 33)), (100, 90, (9, 110)), (5, 7, 224), (33, 2, (1, 5))]
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_resizing_equals_pillow(height: int, width: int, size: int | tuple[int, int], dtype: torch.dtype) -> None:
    images, draws = noise(12, height, width), draws_of(12)
    step = RandomResizedCrop(size)
    result = step(images.to(dtype), draws)
    assert result.dtype == dtype
    out_height, out_width = size if isinstance(size, tuple) else (size, size)
    assert result.shape == (12, out_height, out_width, 3)
    errors = []
    for image, found, (t, l, h, w) in zip(images, result, step.windows(draws, height, width).tolist(), strict=True):  # noqa: E741
        pil_image = Image.fromarray(image.numpy())
        expected = pil_image.crop((l, t, l + w, t + h)).resize((out_width, out_height), Image.Resampling.BILINEAR)
        errors.append(found.numpy() - np.asarray(expected, np.float32))
    # Pillow rounds twice, after resizing columns and after resizing rows, by up to half a level each time.
    assert np.abs(errors).max() <= 1.01
    assert abs(np.mean(errors)) < 0.1


def test_resizing_keeps_levels_within_bounds() -> None:
    for level in (0, 255):
        images = torch.full((20, 31, 17, 1), level, dtype=torch.uint8)
        result = RandomResizedCrop((40, 5))(images, draws_of(20))
        assert torch.allclose(result, torch.full_like(result, level), rtol=0, atol=1e-3)


# Normalize


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)]
)
@pytest.mark.parametrize("source", [torch.uint8, torch.float32])
def test_normalize_with_given_statistics(dtype: torch.dtype, tolerance: float, source: torch.dtype) -> None:
    images, (mean, std) = noise(10, 8, 6).to(source), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    expected = (images.double().numpy() / 255 - mean) / std
    given: Any = ("imagenet", (mean, std), [mean, std])
    for statistics in given:
        result = Normalize(statistics, dtype=dtype)(images, draws_of(10))
        assert result.dtype == dtype
        np.testing.assert_allclose(result.double().numpy(), expected, rtol=tolerance, atol=2e-6)


def test_normalize_with_statistics_of_a_store(store: Path, images: NDArray[np.uint8], tmp_path: Path) -> None:
    mean, std = map(np.array, pixel_statistics(images))
    for source in (store, str(store), open_store(store)):
        result = Normalize(source)(torch.from_numpy(images), draws_of(COUNT)).numpy()
        np.testing.assert_allclose(result, (images - mean) / std, rtol=1e-5, atol=2e-6)
    flat = make_store(tmp_path / "flat", np.zeros((6, 8, 6, 3), np.uint8))
    with pytest.raises(ValueError, match=r"flat: the std of its channels is \(0\.0, 0\.0, 0\.0\)"):
        Normalize(flat)


def test_normalize_rejects_a_different_number_of_channels() -> None:
    gray = Augment(RandomResizedCrop(4), Normalize(((0.5,), (0.2,))))(batch_of(noise(6, 8, 6, 1)))
    assert gray.images.shape == (6, 1, 4, 4)
    with pytest.raises(ValueError, match="images have 1 channels, expected 3"):
        Normalize("imagenet")(noise(2, 8, 6, 1), draws_of(2))


# Errors


@pytest.mark.parametrize("size", [0, -3, True, 2.0, "224", (4,), (4, 5, 6), (4, 0), [4, 4]])
@pytest.mark.parametrize("step", [CenterCrop, RandomCrop, RandomResizedCrop])
def test_invalid_sizes_are_rejected(step: Callable[[Any], Step], size: Any) -> None:
    with pytest.raises(ValueError, match=r"size is .*, expected a whole number of pixels"):
        step(size)


def test_invalid_arguments_are_rejected() -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: RandomResizedCrop(4, scale=(0.5, 0.1)), r"scale is \(0.5, 0.1\), expected two numbers above 0"),
        (lambda: RandomResizedCrop(4, scale=(0.5, 1.1)), r"scale is \(0.5, 1.1\), .* above 0 of at most 1"),
        (lambda: RandomResizedCrop(4, ratio=(1, math.inf)), r"ratio is \(1, inf\)"),
        (lambda: RandomFlip(1.5), "p is 1.5, expected a probability, 0 to 1"),
        (lambda: Normalize("cifar"), "there are no statistics for 'cifar'; expected \"imagenet\", a store or"),
        (lambda: Normalize("imagenet", dtype=torch.uint8), r"dtype is torch.uint8, expected one of torch.float32, "),
        (lambda: Normalize(((124, 116, 104), (58, 57, 57))), r"statistics are \(\(124, .*, each a number per channel"),
        (lambda: Normalize(cast("Any", (0.5, 0.5))), r"statistics are \(0.5, 0.5\), .*, each a number per channel in"),
        (lambda: Augment(RandomFlip(), seed=0.5), "seed is 0.5, expected a whole number"),  # type: ignore[arg-type]
        (lambda: Augment(RandomFlip), r"a step is .*RandomFlip'>, expected a callable object"),  # type: ignore[arg-type]
        (lambda: Augment([RandomFlip()]), r"expected a callable object .*; pass Augment\(\*steps\)"),  # type: ignore[arg-type]
        (lambda: Augment(len), "the step len does not take two arguments, images and draws; for a function"),  # type: ignore[arg-type]
    ]
    for make, message in wrong:
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize("step", [CenterCrop((8, 7)), RandomCrop((9, 6)), CenterCrop(9)])
def test_crop_larger_than_the_images_is_an_error(step: Step) -> None:
    with pytest.raises(ValueError, match=r"a crop of \dx\d is larger than the images, 8x6"):
        Augment(step)(batch_of(noise(4)))


@pytest.mark.parametrize("transform", [RandomFlip(), MixUp(0.2, 3), PerImage(vars), [RandomFlip()], pow, 3])
def test_transform_that_does_not_accept_a_batch_is_refused(transform: Any, store: Path) -> None:
    message = re.escape(f"transform is {transform!r}, expected a function with one parameter, a Batch; wrap steps in")
    with pytest.raises(TypeError, match=message):
        Loader(store, batch_size=2, transform=transform)


def test_transform_whose_parameters_are_unknown_is_accepted(store: Path) -> None:
    transform: Any = vars  # a function of C without a signature
    with pytest.raises(TypeError, match="transform returned dict, expected a Batch"):
        list(Loader(store, batch_size=2, transform=transform))


# ---- ramp: image sizes that change with the epoch


def resolution(epoch: int, min_res: int, max_res: int, end_ramp: int, start_ramp: int) -> int:
    """`get_resolution` from FFCV's published training script for ImageNet."""
    if epoch <= start_ramp:
        return min_res
    if epoch >= end_ramp:
        return max_res
    interp = np.interp([epoch], [start_ramp, end_ramp], [min_res, max_res])
    return int(np.round(interp[0] / 32)) * 32


def test_sizes_equal_ffcv() -> None:
    ramps = [(65, 76, 160, 192), (41, 48, 160, 192), (11, 13, 160, 192), (0, 30, 64, 256), (0, 1, 128, 224)]
    for start, end, least, most in ramps:  # the first three are those of FFCV for 88, 56 and 16 epochs
        expected = [resolution(epoch, least, most, end, start) for epoch in range(100)]
        assert list(map(ramp(start, least, end, most), range(100))) == expected
    assert list(map(ramp(1, 256, 5, 128), range(7))) == [256, 256, 224, 192, 160, 128, 128]
    assert list(map(ramp(0, 100, 4, 116, multiple=8), range(6))) == [100, 104, 112, 112, 116, 116]
    assert list(map(ramp(0, 100, 4, 110), range(6))) == [100, 100, 100, 100, 110, 110]


def test_invalid_ramps_are_rejected() -> None:
    wrong: dict[str, Any] = {
        "last_epoch is 5, expected an epoch after first_epoch=5": (5, 160, 5, 192),
        "first_epoch is -1, expected a whole number of 0 or more": (-1, 160, 5, 192),
        "first_size is 160.0, expected a whole number": (0, 160.0, 5, 192),
        "last_size is 0, expected a whole number of 1 or more": (0, 160, 5, 0),
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            ramp(*arguments)


def test_repr_is_the_call() -> None:
    mix = OneOf(MixUp(0.8, 3), CutMix(1.0, 3), weights=(1, 2))
    mixed = Augment(RandomResizedCrop(ramp(1, 8, 3, 16, multiple=4)), mix, seed=3, mixed="tags")
    for made in (mixed, Augment(RandomFlip(), paired={"mask": "nearest"}), Views(Augment(RandomFlip(), seed=4))):
        assert repr(eval(repr(made))) == repr(made)


# ---- The code for CPUs gives the same results as the code for devices, at a fraction of the cost

SIZES = [
    ((64, 48), (32, 32)),
    ((40, 60), (70, 33)),
    ((100, 90), (9, 110)),
    ((5, 7), (224, 224)),
    ((33, 2), (1, 5)),
    ((1, 1), (3, 4)),
]


def windows_in(images: Tensor) -> Tensor:
    draws = Draws(5, torch.arange(len(images)))
    return RandomResizedCrop(9).windows(draws, images.shape[1], images.shape[2])


def resize_on_cpu(images: Tensor, windows: Tensor, height: int, width: int) -> Tensor:
    return resize_rows(PendingRows.of(images), windows, height, width).done()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """A function that sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# Resizing


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_cpu_and_device_resize_differ_by_one_level(
    before: tuple[int, int], after: tuple[int, int], channels: int
) -> None:
    images = noise(12, *before, channels)
    windows = windows_in(images)
    on_cpu, on_device = resize_on_cpu(images, windows, *after), resize_on_device(images, windows, *after)
    assert on_cpu.shape == on_device.shape == (12, *after, channels)
    assert on_cpu.dtype == on_device.dtype == torch.uint8
    difference = on_cpu.to(torch.float32) - on_device
    assert difference.abs().max() <= 1
    assert difference.mean().abs() < 0.15
    exact = resize_on_device(images.to(torch.float32), windows, *after)
    assert (on_device - exact).abs().max() < 0.501  # rounded to the nearest level


def test_threads_of_others_keep_their_number_of_torch_threads(threads: Callable[[int], None]) -> None:
    threads(3)
    images, rows = noise(17, 33, 41), torch.arange(17)
    Augment(RandomResizedCrop(20))(Batch(images, rows, rows, 17, 0))
    with ThreadPoolExecutor(1) as pool:
        assert (torch.get_num_threads(), pool.submit(torch.get_num_threads).result()) == (3, 3)


def test_own_call_of_a_subclass_is_used() -> None:
    class Inverted(RandomFlip):
        def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
            return 255 - super().__call__(images, draws)

    images, rows = noise(17, 33, 41), torch.arange(17)
    ours, own = (Augment(step)(Batch(images, rows, rows, 17, 0)).images for step in (RandomFlip(), Inverted()))
    assert torch.equal(own, 255 - ours)


# Flips and Normalize


@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_cpu_and_device_normalize_are_close(channels: int, result: torch.dtype) -> None:
    draws = Draws(0, torch.arange(20))
    images = CenterCrop((7, 30))(noise(20, 9, 33, channels), draws)
    step = Normalize(((0.2, 0.3, 0.4, 0.0)[:channels], (0.2, 0.13, 0.08, 0.06)[:channels]), dtype=result)
    found, expected = step(images, draws), step.on_device(images, draws)
    assert found.is_contiguous()
    assert found.dtype == result
    assert torch.allclose(found, expected, rtol=torch.finfo(result).eps, atol=1e-6)


# Memory of results


def test_memory_is_reused_after_its_last_view_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_thread", threading.local())
    blocks: buffers.Pool[mmap.mmap] = buffers.Pool(4)
    buffers.recycle_from(blocks)  # the thread of a Loader does the same
    shape = (9, 331, 337, 3)
    first = recycled(shape, torch.uint8)
    address, view = first.data_ptr(), first[3:, 5].numpy()
    del first
    assert len(blocks) == 0
    del view
    assert len(blocks) == 1
    larger = recycled((9, 331, 338, 3), torch.uint8)
    assert (len(blocks), larger.data_ptr() == address) == (1, False)
    assert recycled(shape, torch.uint8).data_ptr() == address


def test_closed_and_dropped_loaders_free_memory(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_images(64, shape=(64, 64, 3)))
    loader = Loader(store, batch_size=32, transform=Augment(RandomResizedCrop(128)))
    blocks = loader._delivery.blocks
    assert sum(batch.valid for batch in loader) == 64
    assert len(blocks)
    kept = next(iter(loader))
    loader.close()
    assert not len(blocks)
    del kept
    assert not len(blocks)
    gone = weakref.ref(blocks)
    del loader, blocks
    gc.collect()
    assert gone() is None


# ---- Views gives several augmented views of each row

BATCH = 12


def shuffled(image: Tensor) -> Tensor:
    return image.flatten()[torch.randperm(image.numel())].view(image.shape)


def make_views() -> Views:
    """2 + 8 views, as for DINO: small ones are made with one Augment."""
    large = Augment(RandomResizedCrop(6), RandomFlip(), PerImage(shuffled), Normalize("imagenet"), seed=4)
    small = Augment(RandomResizedCrop(3, scale=(0.05, 0.4)), RandomFlip(), seed=4)
    return Views(large, large, *[small] * 8)


def test_views_have_their_own_draws() -> None:
    images = noise(64)
    batch, augment = batch_of(images), Augment(RandomFlip(), seed=4)
    views = Views(augment, augment, augment, images=True)(batch).views
    flipped = torch.stack([(view != images.permute(0, 3, 1, 2)).flatten(1).any(1) for view in views])
    assert len(set(map(tuple, flipped.tolist()))) == 3
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 15 < (flipped[one] != flipped[other]).sum() < 49
    again = Views(augment, augment)(batch).views
    assert all(map(torch.equal, again, views))
    assert not torch.equal(Views(Augment(RandomFlip(), seed=5))(batch).views[0], views[0])


def test_a_view_equals_its_augment_except_for_the_draws() -> None:
    batch = batch_of(noise(9))
    batch.columns["boxes"] = torch.ones(9, 2, 4)
    result = Views(Augment(RandomFlip(1.0)), Augment(Normalize("imagenet")))(batch)
    mirrored, normalized = result.views
    assert torch.equal(mirrored, Augment(RandomFlip(1.0))(batch).images)
    assert torch.equal(normalized, Augment(Normalize("imagenet"))(batch).images)
    assert normalized.is_contiguous(memory_format=torch.channels_last)
    assert result.labels is batch.labels
    assert result.columns["boxes"] is batch.columns["boxes"]  # where they are in the store's images


def test_images_are_delivered_only_if_asked_for(store: Path, images: NDArray[np.uint8]) -> None:
    with Loader(store, batch_size=BATCH, transform=make_views()) as loader:
        for batch in loader:
            assert batch.images.shape == (0, 8, 6, 3)
            assert [tuple(view.shape) for view in batch.views] == 2 * [(BATCH, 3, 6, 6)] + 8 * [(BATCH, 3, 3, 3)]
        assert loader.stats()["yielded"]["bytes"] == images.nbytes  # each row is read once
    batch = next(iter(Loader(store, batch_size=BATCH, transform=Views(Augment(RandomFlip()), images=True))))
    assert np.array_equal(batch.images, images[batch.rows])


def test_views_move_with_their_batch() -> None:
    batch = run_on_device(Views(Augment(RandomResizedCrop(4), RandomFlip()), Augment(Normalize("imagenet"))))
    assert [view.device.type for view in batch.views] == ["meta"] * 2
    assert [view.shape for view in batch.views] == [(9, 3, 4, 4), (9, 3, 8, 6)]
    on_host = make_views()(batch_of(noise(9)))
    assert {tensor.device.type for tensor in on_host.to("meta").tensors()} == {"meta"}
    assert len(on_host.to("meta").views) == 10
    assert len(on_host.tensors()) == 13


def test_padding_and_epochs_draw_as_without_views(store: Path) -> None:
    seen: list[int] = []

    def keep(images: Tensor, draws: Draws) -> Tensor:
        seen.append(draws.epoch)
        return images

    with Loader(store, batch_size=COUNT - 1, tail="pad", transform=Views(Augment(keep), Augment())) as loader:
        assert [len(batch.views[1]) for batch in (*loader, *loader)] == [COUNT - 1] * 4
    assert seen == [0, 0, 1, 1]


def test_wrong_views_are_rejected() -> None:
    wrong: list[tuple[Any, str]] = [
        ((), "expected an Augment"),
        ((RandomFlip(),), r"the views are \(RandomFlip\(p=0.5\),\), expected an Augment"),
        ((Augment(RandomFlip(), paired={"mask": "nearest"}),), "a view has the paired map 'mask'"),
        ((Augment(), Augment(MixUp(1.0, 3))), "MixUp mixes labels, and the views of an image share"),
    ]
    for views, message in wrong:
        with pytest.raises(ValueError, match=message):
            Views(*views)
