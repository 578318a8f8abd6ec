"""Images and draws for tests of augmentations, and a device that has no values: torch's meta device."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decodeonce import Batch
from decodeonce.augment import Augment, Draws
from decodeonce.loader.augment import fused
from decodeonce.loader.order import derive_key
from tests.stores import random_images


def noise(count: int, height: int = 8, width: int = 6, channels: int = 3) -> Tensor:
    return torch.from_numpy(random_images(count, shape=(height, width, channels)))


def draws_of(count: int, seed: int = 0, epoch: int = 0, step: int = 0) -> Draws:
    """The draws that step number `step` of an Augment gets for rows 0..count-1."""
    return Draws(derive_key(seed, epoch, step), torch.arange(count))


def by_row(batches: Iterable[Batch]) -> dict[int, Tensor]:
    """The valid images of batches by row."""
    seen: dict[int, Tensor] = {}
    for batch in batches:
        seen.update(zip(batch.rows[: batch.valid].tolist(), batch.images, strict=False))
    return seen


def batch_of(images: Tensor, epoch: int = 0) -> Batch:
    rows = torch.arange(len(images), device=images.device)
    return Batch(images, rows % 3, rows, len(images), epoch)


class DeviceOnly(TorchDispatchMode):
    """Fail if a tensor on the host is used or created."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs, result))
        assert all(leaf.device.type == "meta" for leaf in leaves if isinstance(leaf, Tensor)), func
        return result


class WithoutFloat64(TorchDispatchMode):
    """The meta device as one that has no float64, and whose numbers are zeros when they are copied to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        result = func(*args, **kwargs)
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and (leaf.device.type, leaf.dtype) == ("meta", torch.float64):
                raise RuntimeError("Required aspect fp64 is not supported on the device")
        return result


def run_on_device(transform: Callable[[Batch], Batch], columns: dict[str, Tensor] | None = None) -> Batch:
    """Apply a transform to a batch on the meta device; it fails if the host needs a value or copies one."""
    images = torch.empty((9, 8, 6, 3), dtype=torch.uint8, device="meta")
    batch = dataclasses.replace(batch_of(images), columns=columns or {})
    transform(batch)  # creates the constants
    with DeviceOnly(), pytest.MonkeyPatch.context() as patch:  # type: ignore[no-untyped-call]
        patch.delattr(torch, "tensor")  # its copy from the host is invisible to a TorchDispatchMode
        return transform(dataclasses.replace(batch, epoch=1))


def same(first: dict[int, Tensor], second: dict[int, Tensor]) -> bool:
    """Whether rows have equal images."""
    return first.keys() == second.keys() and all(torch.equal(first[row], second[row]) for row in first)


class Counting(TorchDispatchMode):
    """Count what torch launches on a device."""

    launched = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.launched += not func.is_view and "empty" not in str(func)
        return func(*args, **(kwargs or {}))


class Launcher:
    """In place of a kernel, which could not run on the meta device."""

    def __init__(self) -> None:
        self.launched = 0

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*arguments: object, **settings: object) -> None:
            self.launched += 1

        return launch


KERNELS = {"kernel": ["move_pixels", "draw_uniform", "draw_windows"]}
KERNELS |= {"color_kernel": ["jitter_pixels", "recolor_pixels", "blur_pixels"]}


def count_launches(augment: Augment, images: Tensor) -> tuple[int, int]:
    """How many kernels of torch and of our own augment a batch on a device with Triton."""
    batch, launcher = batch_of(images).to("meta"), Launcher()
    with pytest.MonkeyPatch.context() as patch:
        for module, names in KERNELS.items():
            for name in names:
                patch.setattr(importlib.import_module(f"decodeonce.loader.augment.{module}"), name, launcher)
        patch.setattr(fused, "TYPES", ["meta"])
        augment(batch)  # creates the constants
        launcher.launched = 0
        with Counting() as torchs:  # type: ignore[no-untyped-call]
            augment(batch)
        assert not fused.why_not(torch.device("meta"))
    return torchs.launched, launcher.launched
