"""The code of augmentations for CPUs gives the same results as the code for devices, at a fraction of the cost."""

import gc
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, CenterCrop, Draws, Normalize, RandomFlip, RandomResizedCrop
from decodeonce.loader import buffers
from decodeonce.loader.augment.crop import resize_on_device, resize_rows
from decodeonce.loader.augment.rows import Rows
from decodeonce.loader.buffers import recycled
from tests.loader.augmenting import noise
from tests.stores import make_store, random_images

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
    return resize_rows(Rows.of(images), windows, height, width).done()


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


def test_device_rounds_to_the_nearest_level() -> None:
    images = noise(12, 40, 60)
    windows = windows_in(images)
    exact = resize_on_device(images.to(torch.float32), windows, 70, 33)
    assert (resize_on_device(images, windows, 70, 33) - exact).abs().max() < 0.501


def test_results_do_not_depend_on_threads_or_batch(threads: Callable[[int], None]) -> None:
    augment = Augment(RandomResizedCrop(20), RandomFlip(), Normalize("imagenet"))
    images, rows = noise(17, 33, 41), torch.arange(17)

    def augmented(part: slice) -> Tensor:
        return augment(Batch(images[part], rows[part], rows[part], len(rows[part]), 0)).images

    threads(1)
    expected = augmented(slice(None))
    for count in (2, 3):
        threads(count)
        assert torch.equal(augmented(slice(None)), expected)
        parts = [augmented(slice(start, start + 4)) for start in range(0, 17, 4)]
        assert torch.equal(torch.cat(parts), expected)


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_cpu_and_device_flip_are_equal(dtype: torch.dtype, channels: int) -> None:
    draws, step = Draws(0, torch.arange(20)), RandomFlip()
    images = CenterCrop((7, 30))(noise(20, 9, 33, channels).to(dtype), draws)
    found = step(images, draws)
    assert found.is_contiguous()
    assert found.dtype == dtype
    assert torch.equal(found, step.on_device(images, draws))
    assert 5 < (found != images).flatten(1).any(1).sum() < 15


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


def test_kept_batches_do_not_change() -> None:
    images, rows = noise(40, 64, 64), torch.arange(40)
    augment = Augment(RandomResizedCrop(96), RandomFlip(), Normalize("imagenet"))
    kept = [augment(Batch(images, rows, rows, 40, epoch)).images for epoch in range(9)]
    copies = [images.clone() for images in kept]
    for epoch in range(9):
        augment(Batch(images, rows, rows, 40, epoch + 9))
    assert all(map(torch.equal, kept, copies))


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
