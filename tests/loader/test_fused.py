"""Crops, flips and Normalize in one kernel give the results of torch's code, and torch's code replaces a broken kernel.

Without an accelerator, the kernel runs in Triton's interpreter, on tensors on the host.
"""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from decodeonce import Loader
from decodeonce.augment import (
    Augment,
    CenterCrop,
    ColorJitter,
    Draws,
    Normalize,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Step,
    Views,
)
from decodeonce.loader.augment import fused
from tests.loader.augmenting import batch_of, count_launches, noise

COUNT = 3


@pytest.fixture
def launches(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the results of launched kernels."""
    shapes: list[torch.Size] = []
    launch = fused.Chain._launch

    def counted(chain: fused.Chain) -> Tensor:
        out = launch(chain)
        shapes.append(out.shape)
        return out

    monkeypatch.setattr(fused.Chain, "_launch", counted)
    return shapes


def on_both(device: torch.device, images: Tensor, *steps: Step) -> tuple[Tensor, Tensor]:
    """Images that the kernel augmented, and those of torch's code on the host."""
    augment = Augment(*steps, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = augment(batch_of(images.to(device), epoch=1)).images
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "TYPES", [])
        expected = augment(batch_of(images, epoch=1)).images
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    return found.cpu().to(torch.float32), expected.to(torch.float32)


SIZES = [
    ((32, 27), (16, 18)),  # more pixels than a program of the kernel computes
    ((20, 40), (25, 11)),
    ((60, 13), (9, 28)),
    ((5, 7), (13, 15)),
    ((17, 2), (5, 1)),
    ((1, 1), (3, 4)),
    ((1, 30), (1, 17)),
    ((40, 4), (5, 4)),  # the most lines and columns that a pixel can depend on
    ((4, 40), (5, 5)),
]


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_resized_pixels_differ_by_at_most_one_level(
    device: torch.device, launches: list[torch.Size], before: tuple[int, int], after: tuple[int, int]
) -> None:
    found, expected = on_both(device, noise(COUNT, *before), RandomResizedCrop(after))
    assert launches == [(COUNT, *after, 3)]
    assert (found - expected).abs().max() <= 1
    assert (found - expected).mean().abs() < 0.15


@pytest.mark.parametrize("value", [0, 255])
def test_black_and_white_stay(device: torch.device, value: int) -> None:
    images = torch.full((COUNT, 19, 17, 3), value, dtype=torch.uint8)
    found, _ = on_both(device, images, RandomResizedCrop(12))
    assert (found == value).all()


MOVES: list[list[Step]] = [
    [CenterCrop(7)],
    [RandomCrop((9, 8)), RandomFlip()],
    [RandomFlip(), RandomCrop((9, 8)), RandomFlip(), CenterCrop((8, 3)), RandomFlip(1.0)],
]


@pytest.mark.parametrize("steps", MOVES)
def test_moved_pixels_are_equal(device: torch.device, launches: list[torch.Size], steps: list[Step]) -> None:
    found, expected = on_both(device, noise(COUNT, 12, 10), *steps)
    assert len(launches) == 1
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_normalized_pixels_are_close(device: torch.device, launches: list[torch.Size], dtype: torch.dtype) -> None:
    steps = RandomFlip(), Normalize("imagenet", dtype=dtype), RandomCrop((9, 8)), RandomFlip()
    found, expected = on_both(device, noise(COUNT, 12, 10), *steps)
    assert len(launches) == 1
    assert torch.allclose(found, expected, rtol=torch.finfo(dtype).eps, atol=2e-6)


def test_chain_takes_twelve_launches(device: torch.device) -> None:
    augment = Augment(RandomResizedCrop(24), RandomFlip(), Normalize("imagenet", dtype=torch.bfloat16))
    assert count_launches(augment, noise(COUNT, 33, 35)) == (9, 3)


@pytest.mark.parametrize("key", [0, 5, 2**63, 2**64 - 1])
def test_draws_are_bit_identical(device: torch.device, monkeypatch: pytest.MonkeyPatch, key: int) -> None:
    sizes = [(256, 256), (180, 320), (321, 100), (8, 6), (1, 1), (1, 300)]
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 2**62, 4))
    step = RandomResizedCrop(9, scale=(0.3, 0.9), ratio=(0.5, 3))

    def drawn(draws: Draws) -> list[Tensor]:
        numbers = [draws.uniform(1), draws.uniform(22), *(step.windows(draws, *size) for size in sizes)]
        return [one.cpu() for one in numbers]

    found = drawn(Draws(key, rows.to(device)))
    assert not fused.why_not(device)
    monkeypatch.setattr(fused, "TYPES", [])
    expected = drawn(Draws(key, rows))
    assert all(map(torch.equal, found, expected))


def test_whole_chain_takes_one_kernel(device: torch.device, launches: list[torch.Size]) -> None:
    scale = Normalize(((0.0,) * 3, (1 / 255,) * 3))  # leaves levels as they are
    steps = RandomCrop(30), RandomFlip(), RandomResizedCrop((20, 23)), RandomFlip(), RandomCrop(19), RandomFlip(), scale
    found, expected = on_both(device, noise(COUNT, 33, 35), *steps)
    assert launches == [(COUNT, 19, 19, 3)]
    assert (found - expected).abs().max() <= 1.001


def test_other_steps_run_between_kernels(device: torch.device, launches: list[torch.Size]) -> None:
    steps = RandomCrop(20), ColorJitter(saturation=(0.5, 0.5)), RandomFlip(), RandomResizedCrop(9), RandomResizedCrop(5)
    found, expected = on_both(device, noise(COUNT, 33, 35), *steps)
    assert launches == [(COUNT, 20, 20, 3), (COUNT, 9, 9, 3)]  # the second resize needs the first one's pixels
    assert (found - expected).abs().max() <= 2


@pytest.mark.parametrize(
    ("images", "steps", "expected"),
    [
        (noise(COUNT, 12, 10, 1), [RandomFlip()], 0),
        (noise(COUNT, 12, 10).to(torch.float32), [RandomFlip()], 0),
        (noise(COUNT, 90, 80), [RandomResizedCrop(5)], 0),
        (noise(COUNT, 12, 10), [Normalize("imagenet"), RandomResizedCrop(5)], 1),
        (noise(COUNT, 12, 10), [], 0),
    ],
    ids=["gray", "float", "far smaller", "resize of float", "nothing"],
)
def test_what_the_kernel_cannot_do_is_left_to_torch(
    device: torch.device, launches: list[torch.Size], images: Tensor, steps: list[Step], expected: int
) -> None:
    one, other = on_both(device, images, *steps)
    assert len(launches) == expected
    assert (one - other).abs().max() <= 1


def test_rows_of_a_batch_can_be_apart(device: torch.device) -> None:
    """As they are if the store has paired masks."""
    apart = noise(COUNT, 13, 10)[:, :12]
    found, expected = on_both(device, apart, RandomFlip())
    assert torch.equal(found, expected)
    turned = noise(COUNT, 10, 12).transpose(1, 2)
    found, expected = on_both(device, turned, RandomFlip())
    assert torch.equal(found, expected)


def test_maps_and_boxes_move_with_the_images(device: torch.device, launches: list[torch.Size]) -> None:
    images = noise(COUNT, 33, 35)
    columns = {"mask": images[..., 0], "boxes": torch.tensor([[[3.0, 4, 20, 30]]]).expand(COUNT, 1, 4)}
    batch = dataclasses.replace(batch_of(images), columns=columns).to(device)
    augment = Augment(RandomCrop(30), RandomResizedCrop(24), RandomFlip(), paired={"mask": "bilinear"}, seed=4)
    found = augment(batch)
    assert len(launches) == 1
    difference = found.images[:, 0].to(torch.float32) - found["mask"].to(torch.float32)
    assert difference.abs().max() <= 1


def test_each_view_takes_one_kernel(device: torch.device, launches: list[torch.Size]) -> None:
    large, small = (Augment(RandomResizedCrop(size), RandomFlip(), Normalize("imagenet")) for size in (20, 9))
    views = Views(large, small, small)(batch_of(noise(COUNT, 22, 21).to(device))).views
    assert launches == [(COUNT, 20, 20, 3), (COUNT, 9, 9, 3), (COUNT, 9, 9, 3)]
    assert [view.shape[2] for view in views] == [20, 9, 9]


def test_stats_say_what_augments_and_why(store: Path) -> None:
    with Loader(store, batch_size=4, transform=Augment(RandomFlip())) as loader:
        assert loader.stats()["augment"] == {"kernel": "torch", "why": "Triton has no kernels for the device cpu"}
    with Loader(store, batch_size=4) as loader:
        assert "augment" not in loader.stats()


def test_batches_of_a_loader_come_from_the_kernel(
    store: Path, device: torch.device, launches: list[torch.Size]
) -> None:
    augment = Augment(RandomCrop(5), RandomFlip(), seed=4)
    with Loader(store, batch_size=20, device=device, transform=augment) as loader:
        found = [batch.images.cpu() for batch in loader]
        assert loader.stats()["augment"]["kernel"] == "triton"
    assert launches == [(20, 5, 5, 3)] * 3
    fused.TYPES.clear()
    with Loader(store, batch_size=20, transform=augment) as loader:
        for one, batch in zip(found, loader, strict=True):
            assert torch.equal(one, batch.images)


def test_broken_triton_gives_one_warning_and_the_same_images(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(chain: fused.Chain) -> Tensor:
        raise OSError("no C compiler")

    monkeypatch.setattr(fused.Chain, "_launch", broken)
    images = noise(COUNT, 33, 35).to(device)
    augment = Augment(RandomCrop(30), RandomResizedCrop(24), RandomFlip(), Normalize("imagenet"), seed=4)
    problem = f"failed on {device}, so Augment uses torch .* OSError: no C compiler"
    with pytest.warns(UserWarning, match=problem) as seen:
        found = [augment(batch_of(images)).images for _ in range(3)]
    assert len(seen) == 1
    assert "no C compiler" in fused.why_not(device)
    monkeypatch.setattr(fused, "TYPES", [])
    expected = augment(batch_of(images)).images
    # Levels of the code for devices and of that for a CPU differ by one, which is 1 / (0.225 * 255) at most.
    assert all((one - expected).abs().max() <= 0.018 for one in found)
