"""Transforms of other libraries as steps of Augment: PerImage and PerBatch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from decodeonce.loader.augment.augment import Draws, Step
from decodeonce.loader.augment.rows import fill_rows, share_rows
from decodeonce.loader.augment.seeded import Seeded
from decodeonce.loader.buffers import recycled
from decodeonce.loader.delivery import name_of
from decodeonce.store.layout import check_choice

Takes = Literal["tensor", "float", "pil", "numpy"]

_TAKES: dict[str, Takes] = {"kornia": "float", "albumentations": "numpy"}
_CHECKED_ROWS = 8


class _Foreign(Step):
    """Base of PerImage and PerBatch: copies of a transform, and what it takes and returns."""

    def __init__(self, transform: Callable[[Any], Any], *, takes: Takes | None = None) -> None:
        if isinstance(transform, type) or not callable(transform):
            raise ValueError(f"transform is {transform!r}, expected a callable object such as v2.RandAugment()")
        if takes is not None:
            check_choice("takes", takes, Takes)
        libraries = {base.__module__.partition(".")[0] for base in type(transform).__mro__}
        self.transform = transform
        self._by_name = "albumentations" in libraries
        self._takes = takes or next((_TAKES[name] for name in _TAKES if name in libraries), "tensor")
        self._may_ignore = self._takes == "numpy" and "torchvision" in libraries
        if self._takes == "pil":
            from PIL import Image  # the Loader does not need Pillow

            self._to_pillow = Image.fromarray
        self._free: deque[tuple[Any, Seeded]] = deque()
        self._checked = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r})"

    @contextmanager
    def _runner(self) -> Iterator[Callable[[Tensor, int], Tensor]]:
        """A function that transforms an image, or a batch, with a seed. It works only in this thread."""
        # Transforms of albumentations and kornia keep in themselves what they draw, so no two threads can use one.
        try:
            transform, seeded = self._free.pop()
        except IndexError:
            transform, seeded = deepcopy(self.transform), Seeded()

        def run(given: Tensor, seed: int) -> Tensor:
            seeded.seed(seed)
            if hasattr(transform, "set_random_seed"):
                transform.set_random_seed(seed % 2**64)
            argument = self._give(given)
            result = transform(image=argument)["image"] if self._by_name else transform(argument)
            if self._may_ignore and result is argument:
                raise ValueError(f'{self._name()} ignores arrays, as torchvision does; pass takes="tensor" or "pil"')
            return self._accept(result, given)

        with torch.no_grad(), seeded:  # a thread starts with gradients
            yield run
        self._free.append((transform, seeded))

    def _give(self, given: Tensor) -> Any:
        """A copy of (..., H, W, C) in the form that the transform takes."""
        if self._takes in ("tensor", "float"):
            tensor = given.movedim(-1, -3).clone(memory_format=torch.contiguous_format)
            return tensor / 255 if self._scaled(given) else tensor
        array = given.numpy().copy()
        if self._takes == "numpy":
            return array
        if array.dtype != np.uint8:
            raise ValueError(f'takes="pil" needs uint8 images, got {given.dtype}; put this step before Normalize')
        return self._to_pillow(array[:, :, 0] if array.shape[2] == 1 else array)

    def _accept(self, result: Any, given: Tensor) -> Tensor:
        """Turn what the transform returned into (..., H, W, C)."""
        if isinstance(result, Tensor):
            tensor = result.as_subclass(Tensor).movedim(-3, -1) if result.dim() == given.dim() else result
        elif isinstance(result, np.ndarray) or type(result).__module__.startswith("PIL."):
            array = np.array(result)
            tensor = torch.from_numpy(array[:, :, None] if array.ndim == 2 else array)
        else:
            kinds = "a Tensor, an array or an image of Pillow"
            raise TypeError(f"{self._name()} returned {type(result).__name__}, expected {kinds}")
        if tensor.dim() != given.dim():
            raise ValueError(f"{self._name()} returned {tensor.dim()} dimensions, expected {given.dim()}")
        if not self._scaled(given):
            return tensor
        if not self._checked and not ((tensor > -1) & (tensor < 2)).all():
            found = f"{float(tensor.min()):.2f} to {float(tensor.max()):.2f}"
            advice = "Clamp them or, to normalize, use Normalize of this package as the next step"
            raise ValueError(f"{self._name()} returned values from {found}, expected 0 to 1. {advice}")
        return (tensor * 255 + 0.5).clamp(0, 255).to(torch.uint8)

    def _scaled(self, given: Tensor) -> bool:
        return self._takes == "float" and given.dtype == torch.uint8

    def _check(self, once: Iterable[Tensor], again: Iterable[Tensor]) -> None:
        """Compare the first results with those of a second run."""
        if not all(map(torch.equal, once, again)):
            raise ValueError(
                f"{self._name()} returned two different images for the same image and seed, so a resumed epoch would "
                "differ. Expected a transform that draws through torch, random.x() or np.random.x(), or that has a "
                "method set_random_seed(seed); generators of its own and names from `from random import x` are not "
                "seeded"
            )
        self._checked = True

    def _name(self) -> str:
        return f"{type(self).__name__}: {name_of(self.transform)}"


class PerImage(_Foreign):
    """Apply a function, or a transform of torchvision, albumentations or kornia, to each image.

    The random numbers of the transform depend only on seed, epoch and row. For each image, the generators of torch,
    ``random`` and ``numpy.random`` are seeded, in this thread only. If the transform has a method
    ``set_random_seed(seed)``, as those of albumentations have, it is called before each image. The first images are
    transformed twice, and ValueError is raised if the results differ.

    On a CPU, images are shared among ``torch.get_num_threads()`` threads, at most 8; each has its own copy of the
    transform, made with ``copy.deepcopy``. On another device, a transform that takes tensors gets tensors on that
    device, one after the other. Any other transform works on copies in host memory.

    For a store with boxes, write a subclass with ``move_boxes`` (see ``Step``).

    Args:
        transform: Called with each image. It returns a tensor (C, H, W), an array (H, W, C) or an image of Pillow, all
            of one size.
        takes: What it is called with. "tensor": (C, H, W), uint8 or the dtype of an earlier step. "float": float32
            (C, H, W) in 0..1; its result is 0..1 as well, and becomes uint8 again. "pil": an image of Pillow. "numpy":
            an array (H, W, C). Default: "float" for kornia, "numpy" for albumentations, otherwise "tensor".

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if results cannot be repeated or stacked.

    Example:
        >>> from torchvision.transforms import v2
        >>> augment = Augment(RandomResizedCrop(224), PerImage(v2.RandAugment()), Normalize("imagenet"), seed=0)
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.shape
        torch.Size([16, 3, 224, 224])
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        given = images if self._takes in ("tensor", "float") else images.cpu()
        seeds = draws.seeds().tolist()
        results: dict[int, Tensor] = {}

        def work(rows: Iterable[int]) -> None:
            with self._runner() as run:
                results.update((row, run(given[row], seeds[row])) for row in rows)

        if given.device.type == "cpu":
            share_rows(len(given), work)
        else:  # a new thread would not have the Loader's stream
            work(range(len(given)))
        if not self._checked:
            last_first = range(min(_CHECKED_ROWS, len(given)))[::-1]
            once = [results[row] for row in last_first]
            work(last_first)
            self._check(once, [results[row] for row in last_first])
        if len(sizes := {tuple(result.shape) for result in results.values()}) > 1:
            first, second, *_ = sorted(sizes)
            raise ValueError(f"{self._name()} returned images of {first} and {second}, expected one size")
        if given.device.type != "cpu":
            return torch.stack([results[row] for row in range(len(given))])
        # On loaded cores, one call of torch.stack took 100 ms, because torch's threads wait for each other.
        stacked = recycled((len(given), *sizes.pop()), results[0].dtype)
        return fill_rows(stacked, lambda row: stacked[row].copy_(results[row])).to(images.device)


class PerBatch(_Foreign):
    """Apply a function, or a transform of kornia or torchvision, to each batch on its device.

    The random numbers of the transform depend only on seed, epoch and the first row of the batch. A resumed epoch
    therefore has the same images if the batch size and the number of ranks are the same. Each rank has different random
    numbers. Everything else is as in ``PerImage``.

    Args:
        transform: Called with all images of a batch. It returns a tensor (B, C, H, W) or an array (B, H, W, C).
        takes: What it is called with. "tensor": (B, C, H, W), uint8 or the dtype of an earlier step. "float": float32
            (B, C, H, W) in 0..1; its result is 0..1 as well, and becomes uint8 again. "numpy": an array (B, H, W, C).
            Default: "float" for kornia, "numpy" for albumentations, otherwise "tensor".

    Raises:
        ValueError: If an argument is not valid or, at the first batch, if the result cannot be repeated.

    Example:
        >>> import kornia
        >>> jitter = kornia.augmentation.ColorJitter(0.4, 0.4, 0.4, 0.1)
        >>> augment = Augment(RandomFlip(), PerBatch(jitter), Normalize("imagenet"), seed=0)
        >>> next(iter(Loader("train.store", batch_size=16, transform=augment))).images.shape
        torch.Size([16, 3, 256, 256])
    """

    def __init__(self, transform: Callable[[Any], Any], *, takes: Takes | None = None) -> None:
        super().__init__(transform, takes=takes)
        if self._takes == "pil":
            raise ValueError('takes is "pil", but Pillow has no batches; use PerImage')

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor:
        given = images.cpu() if self._takes == "numpy" else images
        seed = int(draws.seeds()[0])
        with self._runner() as run:
            result = run(given, seed)
            if not self._checked:
                self._check([result], [run(given, seed)])
        if len(result) != len(images):
            raise ValueError(f"{self._name()} returned {len(result)} images for {len(images)}, expected as many")
        return result.to(images.device)
