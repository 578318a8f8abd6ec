"""Run augmentations on torch's meta device. It has no values, so waiting for a device or copying to it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decodeonce import Batch


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


def run_on_device(transform: Callable[[Batch], Batch], columns: dict[str, Tensor] | None = None) -> Batch:
    """Apply a transform to a batch on the meta device; it fails if the host needs a value or copies one."""
    images = torch.empty((9, 8, 6, 3), dtype=torch.uint8, device="meta")
    batch = dataclasses.replace(batch_of(images), columns=columns or {})
    transform(batch)  # creates the constants
    with DeviceOnly(), pytest.MonkeyPatch.context() as patch:  # type: ignore[no-untyped-call]
        patch.delattr(torch, "tensor")  # its copy from the host is invisible to a TorchDispatchMode
        return transform(dataclasses.replace(batch, epoch=1))
