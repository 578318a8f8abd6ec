"""MixUp, CutMix and OneOf equal NumPy for the same random numbers, and mix labels with the same shares."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, CutMix, Draws, MixUp, OneOf, RandomFlip, Step
from decodeonce.loader.augment import mix as mixing
from decodeonce.loader.order import derive_key
from decodeonce.loader.partition import Tail
from tests.loader.augmenting import draws_of, noise
from tests.stores import make_store, random_images

CLASSES = 7
DTYPES = [torch.uint8, torch.float32, torch.bfloat16]
MIXES: list[Callable[..., MixUp | CutMix]] = [MixUp, CutMix]


def one_of_two(alpha: float, num_classes: int) -> OneOf:
    return OneOf(MixUp(alpha, num_classes), CutMix(alpha, num_classes))


def labels_of(count: int) -> Tensor:
    return torch.arange(count) * 5 % CLASSES


def partners_of(draws: Draws) -> list[int]:
    """The partner of each row: the row before it in the order of their fifth random numbers."""
    order = np.argsort(draws.uniform(5)[:, 4].numpy(), kind="stable").tolist()
    return [order[order.index(row) - 1] for row in range(len(order))]


def samples_of(step: MixUp | CutMix, draws: Draws) -> NDArray[np.float64]:
    """The sample of Beta(alpha, alpha) that the second random number of each row selects."""
    half = np.random.RandomState(0).beta(step.alpha, step.alpha, 2**15)
    table = np.concatenate([half, 1 - half])
    samples: NDArray[np.float64] = table[(draws.uniform(2)[:, 1].double().numpy() * 2**16).astype(int)]
    return samples


def mixup_with_numpy(step: MixUp, images: Tensor, draws: Draws) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mixed images and shares, computed with NumPy."""
    levels = images.double().numpy()
    kept = np.where(draws.uniform(1)[:, 0].numpy() < step.p, samples_of(step, draws), 1)
    other = levels[partners_of(draws)]
    return levels * kept[:, None, None, None] + other * (1 - kept)[:, None, None, None], kept


def cutmix_with_numpy(step: CutMix, images: Tensor, draws: Draws) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same for torchvision's CutMix, image by image."""
    levels = images.double().numpy()
    result, kept = levels.copy(), np.ones(len(levels))
    height, width = levels.shape[1:3]
    samples, partners = samples_of(step, draws), partners_of(draws)
    for row, (chosen, _, down, along) in enumerate(draws.uniform(4).tolist()):
        if chosen >= step.p:
            continue
        r = 0.5 * math.sqrt(samples[row])
        y, x, half_height, half_width = int(down * height), int(along * width), int(r * height), int(r * width)
        y1, y2 = max(y - half_height, 0), min(y + half_height, height)
        x1, x2 = max(x - half_width, 0), min(x + half_width, width)
        result[row, y1:y2, x1:x2] = levels[partners[row], y1:y2, x1:x2]
        kept[row] = 1 - (y2 - y1) * (x2 - x1) / (height * width)
    return result, kept


def checked(step: MixUp | CutMix, images: Tensor, draws: Draws, kept: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mixed images. The given ones stay as they are, and labels are mixed by the share that each row keeps."""
    before = images.clone()
    result = step(images, draws)
    assert result.dtype == images.dtype
    assert torch.equal(images, before)
    hard = np.eye(CLASSES)[labels_of(len(images)).numpy()]
    labels = hard * kept[:, None] + hard[partners_of(draws)] * (1 - kept)[:, None]
    soft = step.mix_labels(labels_of(len(images)), draws, *images.shape[1:3])
    assert soft.dtype == torch.float32
    assert np.allclose(soft.numpy(), labels, atol=1e-6)
    return result.double().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("alpha", "p"), [(0.2, 1.0), (1.0, 0.5), (8.0, 0.0)])
def test_mixup_equals_numpy(alpha: float, p: float, dtype: torch.dtype) -> None:
    images, draws, step = noise(40).to(dtype), draws_of(40), MixUp(alpha, CLASSES, p=p)
    expected, kept = mixup_with_numpy(step, images, draws)
    error = np.abs(checked(step, images, draws, kept) - expected).max()
    assert error <= {torch.uint8: 0.501, torch.float32: 1e-4, torch.bfloat16: 1.0}[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("alpha", "p"), [(0.2, 1.0), (1.0, 0.5), (8.0, 0.0)])
@pytest.mark.parametrize(("height", "width"), [(8, 6), (31, 17), (1, 1)])
def test_cutmix_equals_numpy(alpha: float, p: float, dtype: torch.dtype, height: int, width: int) -> None:
    images, draws, step = noise(40, height, width).to(dtype), draws_of(40), CutMix(alpha, CLASSES, p=p)
    expected, kept = cutmix_with_numpy(step, images, draws)
    assert np.array_equal(checked(step, images, draws, kept), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_cpu_and_device_mix_are_close(dtype: torch.dtype) -> None:
    images, draws = noise(40).to(dtype), draws_of(40)
    partners, kept = torch.tensor(partners_of(draws)), draws.uniform(1)[:, 0]
    ways = [way(images, images.flip(0), partners, kept) for way in (mixing.blend_on_cpu, mixing.blend_on_device)]
    assert torch.allclose(ways[0].double(), ways[1].double(), rtol=1e-6, atol=1 if dtype == torch.uint8 else 1e-5)
    ends = (draws.uniform(4) * 13).to(torch.int64).clamp(max=9)
    pasted = [way(images, images.flip(0), partners, ends) for way in (mixing.paste_on_cpu, mixing.paste_on_device)]
    assert torch.equal(*pasted)


@pytest.mark.parametrize("make", [*MIXES, one_of_two])
def test_single_image_is_unchanged(make: Callable[..., MixUp | CutMix | OneOf]) -> None:
    images, step = noise(1), make(1.0, CLASSES)
    assert torch.equal(step(images, draws_of(1)), images)
    soft = step.mix_labels(torch.tensor([3]), draws_of(1), 8, 6)
    assert torch.allclose(soft, torch.eye(CLASSES)[3:4])


# One of several


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", [None, (1, 3), (0.25, 0.75), (0, 2), (5, 0)])
def test_one_of_mixes_each_image_with_the_step_that_its_weights_choose(
    weights: tuple[float, float] | None, dtype: torch.dtype
) -> None:
    steps = (MixUp(0.8, CLASSES), CutMix(1.0, CLASSES, p=0.7))
    step, images, draws = OneOf(*steps, weights=weights), noise(400).to(dtype), draws_of(400)
    first = (weights or (1, 1))[0] / sum(weights or (1, 1))
    by_mixup = draws.uniform(6)[:, 5] < first
    assert abs(by_mixup.double().mean() - first) < 0.08
    mixup, cutmix = (each(images, draws) for each in steps)
    result = step(images, draws)
    assert result.dtype == dtype
    assert torch.equal(result, torch.where(by_mixup[:, None, None, None], mixup, cutmix))
    first_labels, second_labels = (each.mix_labels(labels_of(400), draws, 8, 6) for each in steps)
    labels = torch.where(by_mixup[:, None], first_labels, second_labels)
    assert torch.equal(step.mix_labels(labels_of(400), draws, 8, 6), labels)


def test_one_of_three_steps_mixes_an_image_once() -> None:
    count = 60
    step = OneOf(MixUp(1.0, count), CutMix(1.0, count), MixUp(8.0, count))
    labels = Augment(step)(Batch(noise(count), torch.arange(count), torch.arange(count), count, 0)).labels
    assert ((labels > 0).sum(1) <= 2).all()  # itself and one other
    assert (labels < 1).any(1).all()
    assert torch.allclose(labels.sum(1), torch.ones(count))


def test_step_and_share_of_a_row_depend_on_neither_batch_nor_rank_nor_resume(store: Path) -> None:
    """The other image depends on the batch, but neither the step that mixes a row nor its own share."""
    augment = Augment(OneOf(MixUp(0.8, 300), CutMix(1.0, 300), weights=(2, 1)), seed=3)

    def flat(batch: Batch) -> Batch:
        """Give each row its own class, and its level: MixUp leaves one level per image, and CutMix two."""
        levels = batch.rows.to(torch.float32)[:, None, None, None].expand(-1, 8, 6, 3)
        return augment(Batch(levels, batch.rows, batch.rows, batch.valid, batch.epoch))

    def facts(loader: Loader, steps: int | None = None) -> dict[tuple[int, int], tuple[float, bool]]:
        found = {}
        for batch in itertools.islice(loader, steps):
            for row, labels, image in zip(batch.rows.tolist(), batch.labels, batch.images, strict=True):
                found[batch.epoch, row] = (labels[row].item(), len(image.unique()) > 1)
        return found

    settings: dict[str, Any] = {"tail": "pad", "transform": flat, "seed": 1}
    with Loader(store, batch_size=9, **settings) as loader, Loader(store, batch_size=4, **settings) as first:
        whole, parts = facts(loader), facts(first, 3)
        for rank in range(3):
            with Loader(store, batch_size=5, rank=rank, world_size=3, **settings) as loader:
                loader.load_state_dict(first.state_dict())
                parts |= facts(loader)
    assert parts == whole
    assert {pasted for _, pasted in whole.values()} == {True, False}


# Soft labels in a column


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float16, torch.float32])
def test_named_column_is_mixed_like_the_labels(dtype: torch.dtype) -> None:
    mix, labels, rows = OneOf(MixUp(0.8, CLASSES), CutMix(1.0, CLASSES)), labels_of(40), torch.arange(40)
    tags = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (40, 5))).to(dtype)
    batch = Batch(noise(40), labels, rows, 40, 0, {"tags": tags, "other": tags})
    mixed = Augment(RandomFlip(), mix, mixed="tags")(batch)
    plain = Augment(RandomFlip(), mix)(batch)
    partners = partners_of(Draws(derive_key(0, 0, 1), rows))
    kept = mixed.labels[rows, labels].double()
    other = labels != labels[partners]  # else the label does not show the share
    expected = tags.double() * kept[:, None] + tags[partners].double() * (1 - kept)[:, None]
    assert mixed.columns["tags"].dtype == torch.float32
    assert torch.allclose(mixed.columns["tags"].double()[other], expected[other], atol=1e-6)
    assert other.sum() > 20
    assert torch.equal(mixed.labels, plain.labels)
    assert torch.equal(plain.columns["tags"], tags)
    assert torch.equal(mixed.columns["other"], tags)


# With a Loader


@pytest.mark.parametrize("tail", ["drop", "keep", "pad"])
def test_images_and_labels_are_mixed_with_the_same_shares(store: Path, tail: Tail) -> None:
    """If the level of each image is its label, the mean of a mixed image gives the shares of the classes."""
    step = MixUp(1.0, 300)

    def level_of_label(batch: Batch) -> Batch:
        levels = batch.labels.to(torch.float32)[:, None, None, None].expand(-1, 8, 6, 3)
        return augment(Batch(levels, batch.labels, batch.rows, batch.valid, batch.epoch))

    augment = Augment(RandomFlip(), step, CutMix(1.0, 300, p=0.5), seed=2)
    with Loader(store, batch_size=7, tail=tail, transform=level_of_label, seed=1) as loader:
        for epoch in range(2):
            for batch in loader:
                levels = (batch.labels * torch.arange(300)).sum(1)
                assert batch.epoch == epoch
                assert torch.allclose(batch.images.mean((1, 2, 3)), levels, atol=1e-3)


def test_custom_step_can_mix_labels() -> None:
    class Smooth:
        """Label smoothing, which does not change images."""

        def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
            return images

        def mix_labels(self, labels: Tensor, draws: Draws, height: int, width: int, /) -> Tensor:
            assert (height, width) == (8, 6)
            return labels * 0.9 + 0.1 / labels.shape[1]

    rows = torch.arange(6)
    batch = Augment(MixUp(0.2, CLASSES), Smooth())(Batch(noise(6), labels_of(6), rows, 6, 0))
    assert torch.allclose(batch.labels.sum(1), torch.ones(6))
    assert batch.labels.min() > 0.01


# Errors


@pytest.mark.parametrize("make", MIXES)
def test_invalid_arguments_are_rejected(make: Callable[..., MixUp | CutMix]) -> None:
    for alpha in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"alpha is {alpha}, expected a number above 0"):
            make(alpha, 10)
    for num_classes in (0, 2.5):
        with pytest.raises(ValueError, match=f"num_classes is {num_classes}, expected a whole number of 1 or more"):
            make(1.0, num_classes)
    with pytest.raises(ValueError, match=r"p is 1\.5, expected a probability"):
        make(1.0, 10, p=1.5)


@pytest.mark.parametrize("make", [*MIXES, one_of_two])
def test_fewer_classes_than_in_the_store_are_rejected(make: Callable[..., Step], store: Path) -> None:
    with pytest.raises(ValueError, match=rf"{type(make(1.0, 1)).__name__} has num_classes=1, expected at least the"):
        Loader(store, batch_size=3, transform=Augment(make(1.0, 1)))


def test_steps_and_weights_that_do_not_fit_are_rejected() -> None:
    steps = MixUp(1.0, CLASSES), CutMix(1.0, CLASSES)
    for weights in ((1,), (1, 2, 3), (-1, 2), (0, 0), (math.nan, 1), (math.inf, 1)):
        with pytest.raises(ValueError, match=r"weights is \(.*\), expected 2 numbers of 0 or more, not all 0"):
            OneOf(*steps, weights=weights)
    wrong: Any = ((), (RandomFlip(),), (MixUp,))
    for others in wrong:
        with pytest.raises(ValueError, match=r"OneOf has the steps .*, expected MixUp\(...\) and CutMix\(...\)"):
            OneOf(*others)
    for make in (Augment, OneOf):
        with pytest.raises(ValueError, match="MixUp has num_classes=7 and CutMix has num_classes=9, expected the same"):
            make(steps[0], CutMix(1.0, 9))


def test_mixed_columns_that_cannot_be_mixed_are_rejected(tmp_path: Path) -> None:
    columns = {"weight": np.ones(6, "<f4"), "tags": np.ones((6, 3), "<f4")}
    store = make_store(tmp_path / "store", random_images(6), columns=columns)
    with pytest.raises(ValueError, match="mixed has 'tag', which is not a column of the store; its columns: tags, wei"):
        Loader(store, batch_size=3, transform=Augment(MixUp(1.0, 10), mixed=["tags", "tag"]))
    with pytest.raises(ValueError, match="mixed is 'tags', but no step mixes labels; add a step such as MixUp"):
        Augment(RandomFlip(), mixed="tags")
    with pytest.raises(ValueError, match=r"column 'weight' of mixed has the shape \(3,\), expected soft labels"):
        list(Loader(store, batch_size=3, transform=Augment(MixUp(1.0, 10), mixed="weight")))


@pytest.mark.parametrize("make", [*MIXES, one_of_two])
def test_boxes_are_rejected(tmp_path: Path, make: Callable[..., Step]) -> None:
    store = make_store(tmp_path / "store", random_images(6), columns={"boxes": np.zeros((6, 2, 4), "<f4")})
    augment = Augment(RandomFlip(), make(1.0, CLASSES))
    with pytest.raises(
        ValueError, match=rf"the step {type(make(1.0, 9)).__name__} of Augment does not move boxes; remove it, or"
    ):
        Loader(store, batch_size=3, transform=augment)
    with pytest.raises(ValueError, match="does not move boxes"):
        augment(next(iter(Loader(store, batch_size=3))))
