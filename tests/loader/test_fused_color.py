"""The kernels of the color steps give the results of torch's code, and torch's code replaces a broken kernel.

Without an accelerator, the kernels run in Triton's interpreter, on tensors on the host.
"""

import itertools

import pytest
import torch
from torch import Tensor

from decodeonce.augment import (
    Augment,
    ColorJitter,
    Draws,
    GaussianBlur,
    Normalize,
    RandomFlip,
    RandomGrayscale,
    RandomResizedCrop,
    Solarize,
    Step,
)
from decodeonce.loader.augment import fused, fused_color
from tests.loader.augmenting import batch_of, count_launches, draws_of, noise


def colorful(count: int, height: int, width: int) -> Tensor:
    """Random images, of which the first is smooth and the second gray."""
    images = noise(count, height, width)
    images[0] = images[0, :1, :1] // 2 + images[0] // 4
    images[1:2] = images[1:2, :, :, :1]
    return images


def on_both(device: torch.device, step: Step, images: Tensor, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
    """Images that the kernels of a step changed, and those of torch's code on the host."""
    draws = draws_of(len(images)) if draws is None else draws
    before = images.clone()
    found = step.on_device(images.to(device), Draws(draws.key, draws.rows.to(device)))
    assert not fused.why_not(device)
    assert torch.equal(images, before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "TYPES", [])
        expected = step.on_device(images, draws)
    assert (found.shape, found.dtype) == (expected.shape, torch.uint8)
    return found.cpu().to(torch.int16), expected.to(torch.int16)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Nearly all levels are equal. Others are one level apart, because their fractions are close to a half or to 0."""
    difference = (found - expected).abs()
    assert difference.max() <= 1
    assert difference.count_nonzero() <= 1 + difference.numel() // 1000


def test_jitter_in_every_order_equals_torch(device: torch.device) -> None:
    orders = Draws(0, torch.arange(99)).uniform(9)[:, 4:8].argsort(1).tolist()
    rows = torch.tensor([orders.index([*order]) for order in itertools.permutations(range(4))])
    assert_close(*on_both(device, ColorJitter(0.4, (0.2, 3.0), 0.8, 0.3), colorful(24, 5, 7), Draws(0, rows)))


JITTERS = [
    (ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.5), (33, 35)),  # a program of the kernel is for fewer pixels
    (ColorJitter((0.0, 9.0), (0.0, 9.0), (0.0, 9.0), 0.5), (1, 1)),
    (ColorJitter((0.0, 9.0), (0.0, 9.0), (0.0, 9.0), 0.5), (1, 9)),
    (ColorJitter(contrast=(0.0, 0.0), hue=(-0.5, -0.5), p=1), (6, 1)),
    (ColorJitter(0.4, saturation=0.4), (6, 5)),
]


@pytest.mark.parametrize(("step", "size"), JITTERS, ids=repr)
def test_jitter_equals_torch(device: torch.device, step: ColorJitter, size: tuple[int, int]) -> None:
    found, expected = on_both(device, step, colorful(5, *size))
    assert_close(found, expected)


@pytest.mark.parametrize("make", [lambda p: ColorJitter(0.4, 0.4, 0.2, 0.1, p=p), lambda p: GaussianBlur(5, p=p)])
def test_images_that_are_not_chosen_stay(device: torch.device, make: type[ColorJitter]) -> None:
    images = colorful(3, 6, 5)
    found, _ = on_both(device, make(p=0), images)
    assert torch.equal(found, images.to(torch.int16))


@pytest.mark.parametrize("step", [RandomGrayscale(0.5), RandomGrayscale(1.0), Solarize(100, p=0.5), Solarize(0.5)])
def test_gray_and_solarize_equal_torch(device: torch.device, step: Step) -> None:
    images = noise(4, 33, 35)
    images[0, 0, :3] = torch.tensor([0, 1, 255], dtype=torch.uint8)
    assert_close(*on_both(device, step, images))


BLURS = [
    (GaussianBlur(1), (1, 1)),
    (GaussianBlur(3, (1e-30, 9.0)), (2, 7)),
    (GaussianBlur(23, p=0.5), (12, 33)),  # as large as possible
    (GaussianBlur(5, 1e30), (30, 13)),
]


@pytest.mark.parametrize(("step", "size"), BLURS, ids=repr)
def test_blur_equals_torch(device: torch.device, step: GaussianBlur, size: tuple[int, int]) -> None:
    assert_close(*on_both(device, step, colorful(4, *size)))


@pytest.mark.parametrize("step", [ColorJitter(0.0, 0.4, 0.4, 0.1), GaussianBlur(3)])
@pytest.mark.parametrize("value", [0, 255])
def test_blur_keeps_black_and_white(device: torch.device, step: Step, value: int) -> None:
    images = torch.full((2, 4, 3, 3), value, dtype=torch.uint8)
    found, _ = on_both(device, step, images)
    assert (found == value).all()


def test_images_can_be_apart(device: torch.device) -> None:
    """As they are after CenterCrop, or if the store has paired masks."""
    for step in (ColorJitter(0.4, 0.4), RandomGrayscale(1.0), GaussianBlur(3)):
        assert_close(*on_both(device, step, noise(2, 9, 10)[:, 1:7, 2:]))


def test_steps_take_few_launches(device: torch.device) -> None:
    jitter, blur, images = ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8), GaussianBlur(23, p=0.5), noise(4, 33, 35)
    view = RandomResizedCrop(24), RandomFlip(), jitter, RandomGrayscale(0.2), blur, Normalize("imagenet")
    assert count_launches(Augment(jitter), images) == (0, 3)
    assert count_launches(Augment(ColorJitter(0.4)), images) == (0, 2)
    assert count_launches(Augment(RandomGrayscale(0.2)), images) == (0, 2)
    assert count_launches(Augment(blur), noise(4, 33, 35)) == (0, 3)
    assert count_launches(Augment(*view), images) == (10, 12)


def test_broken_kernel_gives_one_warning_and_the_images_of_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> Tensor:
        raise OSError("no C compiler")

    monkeypatch.setattr(fused_color, "jitter", broken)
    images, jitter = noise(3, 6, 5), ColorJitter(0.4, 0.4, 0.4, 0.1)
    draws = draws_of(3)
    with pytest.warns(UserWarning, match="Augment uses torch .* OSError: no C compiler") as seen:
        found = [jitter.on_device(images.to(device), Draws(draws.key, draws.rows.to(device))).cpu() for _ in range(2)]
    assert len(seen) == 1
    assert fused.choice(device)["kernel"] == "torch"
    monkeypatch.setattr(fused, "TYPES", [])
    for one in found:
        assert_close(one.to(torch.int16), jitter.on_device(images, draws).to(torch.int16))


def test_wrong_images_are_no_failure_of_the_kernel(device: torch.device) -> None:
    with pytest.raises(ValueError, match="kernel_size is 23, expected at most 11"):
        Augment(GaussianBlur(23))(batch_of(noise(2, 6, 9).to(device)))
    with pytest.raises(ValueError, match=r"got 1 of torch\.uint8"):
        Solarize().on_device(noise(2, 6, 9, 1).to(device), draws_of(2))
    assert not fused.why_not(device)
