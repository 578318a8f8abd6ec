"""PerImage and PerBatch: transforms of other libraries give the same images after a resume and on any number of ranks.

Most tests use callables of this file that draw from torch, NumPy and Python, as those of the libraries do. The last
tests use the libraries.
"""

import dataclasses
import itertools
import pickle
import random
import threading
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, Draws, Normalize, PerBatch, PerImage, RandomFlip, Step
from decodeonce.loader.augment.seeded import Seeded
from decodeonce.loader.delivery import USE_PER_IMAGE
from decodeonce.loader.order import derive_key
from tests.conftest import COUNT
from tests.libraries import library
from tests.loader.augmenting import batch_of, by_row, noise, same

SEED = 4


# Stand-ins for transforms of libraries. Each draws as some library does.


def torch_jitter(image: Tensor) -> Tensor:
    """As torchvision: functions of torch, with and without `generator`, and in place."""
    noise = torch.randn_like(image, dtype=torch.float32) + torch.empty(1).uniform_(-9, 9) + torch.randint(0, 9, (1,))
    noise += torch.rand_like(noise) + torch.randint_like(image, 9) + torch.randint_like(noise, -9, 9)
    order = torch.randperm(image.shape[-3])
    return (image + noise * torch.rand(())).clamp(0, 255).to(torch.uint8)[..., order, :, :]


def pillow_jitter(image: Image.Image) -> Image.Image:
    """As timm: functions of `random` and `numpy.random`."""
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    level, slope = random.randint(0, 99), np.random.uniform(0.5, 1)
    return image.point(lambda value: int(value * slope + level))


def array_jitter(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    level: Any = np.random.randint(0, 256, image.shape[-1])
    found: NDArray[np.uint8] = image ^ level.astype(np.uint8)
    return found


class OwnGenerator:
    """As albumentations: generators of its own, and state that two threads must not share."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()
        self.level = 0

    def set_random_seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def __call__(self, image: Tensor) -> Tensor:
        self.level = int(self.generator.integers(256))
        found = image ^ self.level
        for _ in range(20):  # gives other threads time to change `level`
            torch.zeros(9).sum()
        return found ^ self.level ^ int(self.generator.integers(256))


PER_IMAGE: dict[str, Callable[[], PerImage]] = {
    "torch": lambda: PerImage(torch_jitter),
    "float": lambda: PerImage(lambda image: image * torch.rand(()), takes="float"),
    "pillow": lambda: PerImage(pillow_jitter, takes="pil"),
    "numpy": lambda: PerImage(array_jitter, takes="numpy"),
    "own generator": lambda: PerImage(OwnGenerator()),
}
PER_BATCH: dict[str, Callable[[], PerBatch]] = {
    "torch": lambda: PerBatch(torch_jitter),
    "float": lambda: PerBatch(lambda images: images * torch.rand(len(images))[:, None, None, None], takes="float"),
    "numpy": lambda: PerBatch(array_jitter, takes="numpy"),
    "own generator": lambda: PerBatch(OwnGenerator()),
}


@pytest.fixture(autouse=True)
def several_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


Rows = dict[int, Tensor]


def epochs(store: Path, step: Any, count: int = 2, **settings: Any) -> list[Rows]:
    with Loader(store, **{"batch_size": 12, "transform": Augment(RandomFlip(), step, seed=SEED), **settings}) as loader:
        return [by_row(loader) for _ in range(count)]


# What decides an image


@pytest.mark.parametrize("kind", PER_IMAGE)
def test_image_is_independent_of_batch_world_size_and_threads(store: Path, kind: str) -> None:
    expected = epochs(store, PER_IMAGE[kind](), batch_size=COUNT)
    assert not same(*expected)
    for threads, world_size, batch_size in [(1, 3, 20), (2, 2, 7)]:
        torch.set_num_threads(threads)
        found: list[Rows] = [{}, {}]
        settings: dict[str, Any] = {"batch_size": batch_size, "tail": "keep", "world_size": world_size}
        for rank in range(world_size):
            for epoch, part in zip(found, epochs(store, PER_IMAGE[kind](), rank=rank, **settings), strict=True):
                epoch.update(part)
        assert all(map(same, found, expected))


@pytest.mark.parametrize("kind", PER_IMAGE)
def test_resume_after_every_step_gives_the_same_images(store: Path, kind: str) -> None:
    resume_after(range(COUNT // 12 - 1), store, PER_IMAGE[kind])


@pytest.mark.parametrize("kind", PER_BATCH)
def test_resume_gives_the_same_images_if_batches_are_the_same(store: Path, kind: str) -> None:
    resume_after(range(COUNT // 12 - 1), store, PER_BATCH[kind])


def resume_after(steps: Container[int], store: Path, make: Callable[[], Any]) -> None:
    """Stop after these steps of the second epoch, and resume with new objects, with PerImage on two ranks."""
    world_size = 2 if isinstance(make(), PerImage) else 1
    first, expected = epochs(store, make())
    assert not same(first, expected)
    with Loader(store, batch_size=12, transform=Augment(RandomFlip(), make(), seed=SEED)) as loader:
        loader.set_epoch(1)
        batches, found = iter(loader), {}
        for step in range(COUNT // 12 - 1):
            found.update(by_row([next(batches)]))
            if step not in steps:
                continue
            rest: Rows = {}
            for rank in range(world_size):
                transform = Augment(RandomFlip(), make(), seed=SEED)
                ranks: Any = {"batch_size": 12 // world_size, "rank": rank, "world_size": world_size}
                with Loader(store, transform=transform, **ranks) as resumed:
                    resumed.load_state_dict(loader.state_dict())
                    rest.update(by_row(resumed))
            assert same({**found, **rest}, expected)


def test_batch_draws_depend_on_first_row_epoch_and_step() -> None:
    def one_number(images: Tensor) -> Tensor:
        return torch.full_like(images, int(torch.randint(2**30, (1,))), dtype=torch.int64)

    def drawn(rows: list[int], epoch: int = 0, number: int = 0) -> int:
        draws = Draws(derive_key(SEED, epoch, number), torch.tensor(rows), epoch)
        return int(PerBatch(one_number)(noise(4), draws)[0, 0, 0, 0])

    first = drawn([3, 5, 6, 9])
    assert drawn([3, 7, 8, 9]) == first
    assert len({first, drawn([4, 5, 6, 9]), drawn([3, 5, 6, 9], epoch=1), drawn([3, 5, 6, 9], number=1)}) == 4


def test_seeds_of_rows_are_derived_keys() -> None:
    seeds = Draws(derive_key(SEED, 2, 1), torch.tensor([0, 7, 2**40])).seeds()
    assert [seed % 2**64 for seed in seeds.tolist()] == [derive_key(SEED, 2, 1, row) for row in (0, 7, 2**40)]


# Threads and global generators


def draw_everything() -> list[Any]:
    """Draw with every kind of function, also C++ code that draws without a generator in its call from Python."""
    values = [torch.rand(3), torch.randn(2, 2), torch.randint(9, (3,)), torch.randint(2, 9, (3,)), torch.randperm(5)]
    values += [torch.rand_like(torch.ones(3)), torch.randn_like(torch.ones(3)), torch.normal(torch.zeros(2), 1.0)]
    values += [torch.empty(3).uniform_(), torch.empty(3).normal_(), torch.empty(3).exponential_()]
    values += [torch.bernoulli(torch.full((9,), 0.5)), torch.multinomial(torch.ones(9), 3)]
    values += [torch.distributions.Beta(1.0, 2.0).sample(), torch.distributions.Uniform(0, 1).sample((2,))]
    values += [torch.nn.init.trunc_normal_(torch.empty(4))]
    numbers = [random.random(), random.uniform(0, 9), random.choice(range(99)), random.sample(range(99), 3)]
    numbers += [random.gauss(0, 1), random.getrandbits(9), np.random.rand(), np.random.beta(1, 2)]
    numbers += [np.random.randint(99), np.random.choice(99, 3).tolist(), np.random.permutation(5).tolist()]
    return [value.tolist() for value in values] + numbers


def global_states() -> list[Any]:
    numpy: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2]]


def test_all_draws_are_seeded_and_change_no_global_generator() -> None:
    before, seeded = global_states(), Seeded()
    functions = {**vars(random)}, {**vars(np.random)}
    drawn = []
    for seed in (5, 5, -6, 2**63):
        seeded.seed(seed)
        with seeded:
            drawn.append(draw_everything())
    assert global_states() == before
    assert ({**vars(random)}, {**vars(np.random)}) == functions
    assert drawn[0] == drawn[1]
    for first, second in itertools.combinations(drawn[1:], 2):
        assert first[0] != second[0]
        assert first[-1] != second[-1] or first[-2] != second[-2]


def test_other_threads_draw_as_if_nothing_ran() -> None:
    """Another thread draws from the global generators all the time; neither its numbers nor the images change."""
    augment, batch = Augment(*(make() for make in PER_IMAGE.values()), seed=SEED), batch_of(noise(64))
    expected = augment(batch).images
    ended, drawn = threading.Event(), []

    def draw() -> None:
        while not ended.is_set():
            drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))

    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert torch.equal(augment(batch).images, expected)
        assert torch.equal(augment(batch).images, expected)
    finally:
        ended.set()
        thread.join()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    assert len(drawn) > 3
    assert drawn == [(torch.rand(1).item(), random.random(), np.random.rand()) for _ in drawn]


def test_functions_of_random_can_be_pickled() -> None:
    with Seeded():
        for function in (random.random, random.choice, np.random.rand):
            assert pickle.loads(pickle.dumps(function)) is function


def test_images_are_transformed_with_one_core_per_thread() -> None:
    cores: list[int] = []

    def look(image: Tensor) -> Tensor:
        cores.append(torch.get_num_threads())
        return image

    augment = Augment(PerImage(look))
    augment(batch_of(noise(9)))  # also checks that the first images can be repeated
    cores.clear()
    augment(batch_of(noise(9)))
    assert cores == [1] * 9
    assert torch.get_num_threads() == 2


def test_two_loaders_can_share_an_augment(store: Path) -> None:
    both = Augment(PerImage(OwnGenerator()), PerBatch(OwnGenerator()), seed=SEED)
    expected = by_row(Loader(store, batch_size=12, transform=both))
    with Loader(store, batch_size=12, transform=both) as one, Loader(store, batch_size=12, transform=both) as two:
        for batches in zip(*zip(one, two, strict=True), strict=True):
            assert same(by_row(batches), expected)


# What a transform gets and returns


@pytest.mark.parametrize("channels", [1, 3])
def test_transform_gets_what_it_takes(channels: int) -> None:
    images = noise(9, channels=channels)
    got: dict[Any, list[Any]] = {"tensor": [], "float": [], "pil": [], "numpy": []}
    for takes, seen in got.items():

        def keep(image: Any, seen: list[Any] = seen) -> Any:
            seen.append(image)
            return image

        result = Augment(PerImage(keep, takes=takes))(batch_of(images)).images
        assert torch.equal(result.permute(0, 2, 3, 1), images)
        assert result.dtype == torch.uint8
        assert torch.is_grad_enabled()
    assert {(image.shape, image.dtype) for image in got["tensor"]} == {((channels, 8, 6), torch.uint8)}
    assert {(image.shape, image.dtype) for image in got["float"]} == {((channels, 8, 6), torch.float32)}
    assert max(image.max() for image in got["float"]) <= 1
    assert {(image.size, image.mode) for image in got["pil"]} == {((6, 8), "RGB" if channels == 3 else "L")}
    assert {(image.shape, image.dtype) for image in got["numpy"]} == {((8, 6, channels), np.dtype(np.uint8))}


def test_transform_can_write_to_what_it_gets() -> None:
    images = noise(9)
    before = images.clone()
    for takes in ("tensor", "numpy"):
        for step in (PerImage(invert_in_place, takes=takes), PerBatch(invert_in_place, takes=takes)):
            result = Augment(step)(batch_of(images)).images
            assert torch.equal(result.permute(0, 2, 3, 1), 255 - before)
            assert torch.equal(images, before)


def invert_in_place(image: Any) -> Any:
    image ^= 255
    return image


def test_steps_can_come_before_or_after() -> None:
    images, invert = noise(9), PerImage(lambda image: -image)
    result = Augment(Normalize("imagenet"), invert)(batch_of(images)).images
    assert torch.equal(result, -Augment(Normalize("imagenet"))(batch_of(images)).images)
    negative = Augment(PerBatch(lambda images: 1 - images, takes="float"), Normalize("imagenet"))(batch_of(images))
    assert torch.equal(negative.images, Augment(Normalize("imagenet"))(batch_of(255 - images)).images)
    steps: list[Step] = [PerImage(lambda image: image[:, :5, :4].float() / 255), RandomFlip(0.0)]
    assert torch.equal(Augment(*steps)(batch_of(images)).images.permute(0, 2, 3, 1), images[:, :5, :4].float() / 255)
    with pytest.raises(ValueError, match=r"needs uint8 images, got torch\.float32; put this step before Normalize"):
        Augment(Normalize("imagenet"), PerImage(pillow_jitter, takes="pil"))(batch_of(images))


def test_transform_runs_without_gradients() -> None:
    weight = torch.ones(1, requires_grad=True)
    for step in (PerImage(lambda image: image * weight), PerBatch(lambda image: image * weight)):
        assert not Augment(step)(batch_of(noise(9))).images.requires_grad


# Errors

WRONG: Any = 1
CLASS: Any = OwnGenerator


def test_transform_that_is_not_repeatable_is_rejected() -> None:
    generator = np.random.default_rng()
    message = r"PerImage: <lambda> returned two different images .* `from random import x` are not seeded"
    with pytest.raises(ValueError, match=message):
        Augment(PerImage(lambda image: image ^ int(generator.integers(256))))(batch_of(noise(9)))
    with pytest.raises(ValueError, match="PerBatch: <lambda> returned two different images"):
        Augment(PerBatch(lambda image: image ^ int(generator.integers(256))))(batch_of(noise(9)))


def test_errors_name_the_problem() -> None:
    wrong: list[tuple[Callable[[], Step], type[Exception], str]] = [
        (lambda: PerImage(lambda image: image[:, : int(torch.randint(2, 8, ()))]), ValueError, "expected one size"),
        (lambda: PerImage(lambda image: None), TypeError, "returned NoneType, expected a Tensor, an array or"),
        (lambda: PerImage(lambda image: image[0]), ValueError, "returned 2 dimensions, expected 3"),
        (lambda: PerBatch(lambda images: images[0]), ValueError, "returned 3 dimensions, expected 4"),
        (lambda: PerBatch(lambda images: images * 9 - 2, takes="float"), ValueError, r"from -2.* to 7.*, expected"),
        (lambda: PerBatch(lambda images: images[1:]), ValueError, "returned 8 images for 9"),
        (lambda: PerImage(pillow_jitter, takes=WRONG), ValueError, "takes is 1, expected one of 'tensor', 'float'"),
        (lambda: PerBatch(pillow_jitter, takes="pil"), ValueError, "Pillow has no batches; use PerImage"),
        (lambda: PerImage(CLASS), ValueError, "expected a callable object"),
        (lambda: PerImage(WRONG), ValueError, "transform is 1, expected a callable object"),
    ]
    for step, kind, message in wrong:
        with pytest.raises(kind, match=message):
            Augment(step())(batch_of(noise(9)))


def test_transform_of_another_library_is_no_step() -> None:
    message = r"the step <lambda> returned tuple, .* use PerImage\(\.\.\.\) or PerBatch"
    with pytest.raises(TypeError, match=message):
        Augment(cast(Any, lambda *inputs: inputs))(batch_of(noise(9)))


# The libraries


def check_step(store: Path, make: Callable[[], Any]) -> None:
    """The step changes images, is refused without PerImage, and gives the same images after a resume."""
    assert not same(epochs(store, make(), 1)[0], epochs(store, RandomFlip(0.0), 1)[0])
    resume_after({1}, store, make)
    step = make().transform
    name = type(step).__name__
    with pytest.raises(ValueError, match=rf"the step {name} is of \w+; use PerImage\({name}\(\.\.\.\)\), with"):
        Augment(step)


SLOW = pytest.param("AugMix", "pil", marks=pytest.mark.long)


@pytest.mark.parametrize(("name", "takes"), [("RandAugment", "tensor"), ("TrivialAugmentWide", "pil"), SLOW])
def test_torchvision(store: Path, name: str, takes: Any) -> None:
    v2 = library("torchvision.transforms.v2")
    check_step(store, lambda: PerImage(getattr(v2, name)(), takes=takes))


def test_arrays_that_torchvision_ignores_are_refused() -> None:
    v2 = library("torchvision.transforms.v2")
    for transform in (v2.RandomHorizontalFlip(1.0), v2.Compose([v2.ColorJitter(0.4)])):
        with pytest.raises(ValueError, match=r'PerImage: .* ignores arrays, as torchvision does; pass takes="tensor"'):
            Augment(PerImage(transform, takes="numpy"))(batch_of(noise(9)))
    mirror = PerImage(v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(1.0)]), takes="numpy")
    assert torch.equal(Augment(mirror)(batch_of(noise(9))).images, noise(9).flip(2).permute(0, 3, 1, 2))


def test_albumentations(store: Path) -> None:
    a = library("albumentations")
    check_step(store, lambda: PerImage(a.Compose([a.HorizontalFlip(), a.ColorJitter(p=1.0), a.GaussNoise(p=1.0)])))
    check_step(store, lambda: PerImage(a.RandomBrightnessContrast(p=1.0)))


@pytest.mark.long  # importing kornia takes seconds
def test_kornia(store: Path) -> None:
    kornia = library("kornia.augmentation")
    jitter = (0.4, 0.4, 0.4, 0.1)
    check_step(store, lambda: PerBatch(kornia.ColorJitter(*jitter, p=1.0)))
    both = kornia.RandomAffine(30.0, p=1.0), kornia.RandomGaussianNoise(std=0.1, p=1.0)
    check_step(store, lambda: PerBatch(kornia.AugmentationSequential(*both)))
    check_step(store, lambda: PerImage(kornia.ColorJitter(*jitter, p=1.0, keepdim=True)))


# ---- A transform that ignores its first batch, or fails with it, is refused with advice. Transforms of torchvision v2
# ---- ignore unknown types, and those of v1 raise TypeError.


def invert_in_batch(batch: Batch) -> Batch:
    batch.images.bitwise_not_()
    return batch


def count_rows(batch: Batch) -> Batch:
    batch.columns["row"] = batch.rows
    return batch


@pytest.mark.parametrize("transform", [invert_in_batch, count_rows])
def test_transform_may_change_its_batch_in_place(store: Path, transform: Callable[[Batch], Batch]) -> None:
    assert list(Loader(store, batch_size=COUNT, transform=transform))


def test_error_at_first_batch_gets_advice(store: Path) -> None:
    def scaled(images: Any) -> Batch:
        found: Batch = images.to(torch.float32).div(255)
        return found

    def odd(batch: Batch) -> Batch:
        raise UnicodeError("odd rows")

    for transform, kind, cause in ((scaled, TypeError, AttributeError), (odd, ValueError, UnicodeError)):
        message = rf"transform {transform.__name__} failed at its first Batch.*It raised "
        with Loader(store, batch_size=4, transform=transform) as loader, pytest.raises(kind, match=message) as error:
            next(iter(loader))
        assert (type(error.value), type(error.value.__cause__)) == (kind, cause)
        assert str(error.value).endswith(f" {USE_PER_IMAGE} It raised {cause.__name__}: {error.value.__cause__}")


def test_error_at_later_batch_or_in_augment_stays(store: Path) -> None:
    raised = ValueError("odd rows")

    def odd(batch: Any) -> Any:
        if isinstance(batch, Batch) and batch.epoch < 2:
            return batch if batch.epoch else dataclasses.replace(batch)  # only the first batch must be a new one
        raise raised

    loaders = [Loader(store, batch_size=COUNT, transform=one) for one in (odd, Augment(PerImage(odd)))]
    assert len([*loaders[0], *loaders[0]]) == 2
    for loader in loaders:
        with pytest.raises(ValueError, match="odd rows") as error:
            list(loader)
        assert error.value is raised


def test_torchvision_transform_of_a_loader_is_refused(store: Path) -> None:
    v1, v2 = library("torchvision.transforms"), library("torchvision.transforms.v2")
    unchanged = r"returned its Batch unchanged\. .* use Augment\(PerImage\(\.\.\.\)\)"
    whole = (v2.RandomHorizontalFlip(1.0), v2.ColorJitter(0.4), v2.Compose([v2.RandomHorizontalFlip()]))
    refused: list[tuple[Any, type[Exception], str]] = [(one, ValueError, unchanged) for one in whole]
    for one in (v1, v2):
        both = one.Compose([one.RandomResizedCrop(8), one.Normalize([0.5] * 3, [0.5] * 3)])
        refused += [(both, TypeError, r"failed .* use Augment\(PerImage\(.* It raised TypeError: ")]
    for transform, kind, message in refused:
        with pytest.raises(kind, match=f"transform {type(transform).__name__} {message}"):
            list(Loader(store, batch_size=4, transform=transform))
