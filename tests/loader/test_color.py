"""The steps that change colors equal torchvision's functions within a level."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from decodeonce.augment import (
    Augment,
    ColorJitter,
    Draws,
    GaussianBlur,
    Normalize,
    RandomErasing,
    RandomFlip,
    RandomGrayscale,
    RandomResizedCrop,
    Solarize,
    Step,
)
from decodeonce.loader.augment import rows
from decodeonce.loader.augment.rows import fill_rows
from decodeonce.loader.order import derive_key
from tests.libraries import library
from tests.loader.augmenting import batch_of
from tests.stores import random_images

COUNT = 48


STEPS: list[Step] = [
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    ColorJitter(brightness=(0.5, 2.0), hue=(-0.5, 0.5), p=0.5),
    RandomGrayscale(0.5),
    Solarize(100, p=0.5),
    GaussianBlur(5, p=0.5),
    RandomErasing(0.5, value=(1, 2, 3)),
]


def noise(count: int = COUNT, height: int = 14, width: int = 11) -> Tensor:
    """Random images, and some with smooth and gray colors."""
    images = torch.from_numpy(random_images(count, shape=(height, width, 3)))
    images[:8] = images[:8, :1, :1] // 2 + images[:8] // 4
    images[8:12] = images[8:12, :, :, :1]
    return images


def draws_of(images: Tensor, key: int = 3) -> Draws:
    return Draws(key, torch.arange(len(images)))


def largest_difference(found: Tensor, expected: Tensor) -> float:
    return float((found.to(torch.float32) - expected.to(torch.float32)).abs().max())


def planes(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2)


def lines(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_factors_equal_torchvision(name: str, value: float) -> None:
    function: Any = getattr(library("torchvision.transforms.v2.functional"), f"adjust_{name}")
    arguments: Any = {name: (value, value)}
    images = noise()
    found = ColorJitter(**arguments)(images, draws_of(images))
    exact = torch.stack([function(image.to(torch.float32) / 255, value) * 255 for image in planes(images)])
    assert largest_difference(found, lines(exact)) <= 0.501
    # With uint8, torchvision drops the fraction of the gray value, and then that of the result.
    expected = torch.stack([function(image, value) for image in planes(images)])
    assert largest_difference(found, lines(expected)) <= (1 if name == "brightness" else 2)
    assert value == 1 or largest_difference(found, images) > 9


@pytest.mark.parametrize("shift", [-0.5, -0.13, 0.0, 0.02, 0.4])
def test_hue_equals_torchvision(shift: float) -> None:
    functional = library("torchvision.transforms.v2.functional")
    images = noise()
    found = ColorJitter(hue=(shift, shift))(images, draws_of(images))
    assert largest_difference(found, lines(functional.adjust_hue(planes(images), shift))) <= 1


def test_jitter_equals_torchvision_with_the_same_draws() -> None:
    """torchvision gets floats: with uint8 it drops the fraction after each of the four adjustments."""
    f = library("torchvision.transforms.v2.functional")
    adjust = (f.adjust_brightness, f.adjust_contrast, f.adjust_saturation, f.adjust_hue)
    images = noise()
    draws = draws_of(images)
    uniform = draws.uniform(9)
    expected = []
    for image, row in zip(planes(images).to(torch.float32) / 255, uniform.tolist(), strict=True):
        factors = [0.6 + 0.8 * row[0], 0.5 + 1.5 * row[1], 0.6 + 0.8 * row[2], -0.1 + 0.2 * row[3]]
        for number in sorted(range(4), key=lambda kind: row[4 + kind]) if row[8] < 0.8 else ():
            image = adjust[number](image, factors[number])
        expected.append(image * 255)
    found = ColorJitter(0.4, (0.5, 2.0), 0.4, 0.1, p=0.8)(images, draws)
    assert largest_difference(found, lines(torch.stack(expected))) <= 1
    orders = {tuple(order) for order in uniform[:, 4:8].argsort(1).tolist()}
    assert len(orders) > 12  # of 24


def test_gray_equals_torchvision() -> None:
    functional = library("torchvision.transforms.v2.functional")
    images = noise()
    found = RandomGrayscale(1.0)(images, draws_of(images))
    assert largest_difference(found, lines(functional.rgb_to_grayscale(planes(images), 3))) <= 1


@pytest.mark.parametrize("threshold", [0, 1, 128, 255])
def test_solarize_equals_torchvision(threshold: int) -> None:
    functional = library("torchvision.transforms.v2.functional")
    images = noise()
    images[0, 0, :3] = torch.tensor([0, 1, 255], dtype=torch.uint8)
    expected = functional.solarize(planes(images), threshold)
    assert torch.equal(Solarize(threshold)(images, draws_of(images)), lines(expected))


@pytest.mark.parametrize("sigma", [(0.1, 0.1), (2.0, 2.0), (0.1, 5.0)])
@pytest.mark.parametrize("size", [1, 3, 19])
def test_blur_equals_torchvision(size: int, sigma: tuple[float, float]) -> None:
    functional = library("torchvision.transforms.v2.functional")
    images = noise(16)
    draws = draws_of(images)
    drawn = (sigma[0] + (sigma[1] - sigma[0]) * draws.uniform(1)[:, 0]).tolist()
    pairs = zip(planes(images), drawn, strict=True)
    expected = torch.stack([functional.gaussian_blur(image, [size, size], [each, each]) for image, each in pairs])
    found = GaussianBlur(size, sigma)(images, draws)
    assert largest_difference(found, lines(expected)) <= 1


def test_erasing_equals_torchvision() -> None:
    functional = library("torchvision.transforms.v2.functional")
    images = noise(300, 30, 40)
    step, draws = RandomErasing(1.0, value=(9, 0, 255)), draws_of(images)
    fill = torch.tensor([9, 0, 255], dtype=torch.uint8)[:, None, None]
    windows = RandomResizedCrop(1, scale=(0.02, 0.33), ratio=(1 / 3.3, 1 / 0.3)).windows(draws, 30, 40)
    pairs = zip(planes(images), windows.to(torch.int64).tolist(), strict=True)
    expected = torch.stack([functional.erase(image, *window, fill) for image, window in pairs])
    assert torch.equal(step(images, draws), lines(expected))
    shares, ratios = (windows[:, 2] * windows[:, 3] / 1200), windows[:, 2] / windows[:, 3]
    assert 0.01 < shares.min() < 0.05
    assert 0.27 < shares.max() < 0.36
    assert ratios.min() < 0.45
    assert ratios.max() > 2.5


def test_lists_and_one_sigma_are_accepted_as_by_torchvision() -> None:
    pair, fill, sigma, images = cast("Any", [0.5, 2.0]), cast("Any", [1, np.float32(2), 3]), 1.5, noise()
    for step, same in (
        (ColorJitter(pair, hue=0.1), ColorJitter((0.5, 2.0), hue=0.1)),
        (RandomErasing(value=fill), RandomErasing(value=(1, 2, 3))),
        (GaussianBlur(5, sigma), GaussianBlur(5, (sigma, sigma))),
        (GaussianBlur(5, pair), GaussianBlur(5, (0.5, 2.0))),
    ):
        assert torch.equal(step(images, draws_of(images)), same(images, draws_of(images)))


def test_erasing_fills_floats_after_normalize() -> None:
    batch = batch_of(noise())
    found = Augment(Normalize("imagenet"), RandomErasing(1.0))(batch).images
    plain = Augment(Normalize("imagenet"))(batch).images
    erased = (found != plain).any(1)
    assert erased.flatten(1).any(1).all()
    assert (found.permute(0, 2, 3, 1)[erased] == 0).all()


MORE = [GaussianBlur(19), GaussianBlur(1), Solarize(0), ColorJitter((0.0, 1.7), (0.0, 1.7), (0.0, 1.7), 0.5)]


@pytest.mark.parametrize("step", [*STEPS, *MORE], ids=repr)
def test_code_for_cpus_and_devices_differs_by_at_most_one_level(step: Any) -> None:
    images = noise()
    before, on_cpu = images.clone(), step(images, draws_of(images))
    assert torch.equal(images, before)
    assert largest_difference(step.on_device(images, draws_of(images)), on_cpu) <= 1
    assert on_cpu.dtype == torch.uint8


@pytest.mark.parametrize("size", [9, 30])
def test_steps_in_one_pass_equal_those_one_after_the_other(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def count(result: Tensor, fill: Callable[[int], object]) -> Tensor:
        passes.append(1)
        return fill_rows(result, fill)

    monkeypatch.setattr(rows, "fill_rows", count)
    steps: Any = [*STEPS, RandomResizedCrop(size), RandomFlip(), *STEPS, Normalize("imagenet"), RandomErasing(0.5)]
    batch = batch_of(noise())
    found = Augment(*steps, seed=5)(batch).images
    assert len(passes) == 1
    expected = batch.images
    for number, step in enumerate(steps):
        expected = step(expected, Draws(derive_key(5, batch.epoch, number), batch.rows, batch.epoch))
    assert len(passes) == 1 + len(steps)
    assert torch.equal(lines(found), expected)


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_rows_have_their_own_draws_in_any_batch(step: Step) -> None:
    images = noise(1).expand(400, -1, -1, -1)
    found = step(images, draws_of(images))
    part = torch.tensor([3, 7, 123, 399])
    assert torch.equal(step(images[part], Draws(3, part)), found[part])
    changed = (found != images).flatten(1).any(1).to(torch.float32).mean()
    p: Any = step
    assert abs(changed - p.p) < 0.1
    if not isinstance(step, (RandomGrayscale, Solarize)):
        assert len(found.flatten(1).unique(dim=0)) > 100
    assert not torch.equal(step(images, draws_of(images, key=4)), found)


def test_errors_name_the_problem() -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: ColorJitter(-1.0), "brightness is -1.0, expected a number or a range"),
        (lambda: ColorJitter(hue=0.6), "hue is 0.6, expected .* within -0.5 to 0.5"),
        (lambda: ColorJitter(p=2), "p is 2, expected a probability"),
        (lambda: Solarize(300), "threshold is 300, expected 0 to 255"),
        (lambda: GaussianBlur(4), "kernel_size is 4, expected an odd number"),
        (lambda: GaussianBlur(3, (0, 1)), r"sigma is \(0, 1\), expected two numbers above 0"),
        (lambda: RandomErasing(scale=(0, 2)), r"scale is \(0, 2\)"),
        (lambda: RandomErasing(value=cast("Any", "x")), "value is 'x', expected a number, or one per channel"),
        (lambda: RandomErasing(value=()), r"value is \(\), expected a number, or one per channel"),
        (lambda: RandomErasing(value=(0, 0))(noise(), draws_of(noise())), r"3 channels, expected 2 as in value=\(0, 0"),
        (lambda: RandomErasing(value=256)(noise(), draws_of(noise())), "value is 256, expected 0 to 255 for images of"),
        (lambda: ColorJitter(0.1)(noise().float(), draws_of(noise())), r"uint8, got 3 of torch.float32; put it before"),
        (lambda: GaussianBlur(23)(noise(), draws_of(noise())), "kernel_size is 23, expected at most 21 for images of"),
    ]
    for make, message in wrong:
        with pytest.raises(ValueError, match=message):
            make()
