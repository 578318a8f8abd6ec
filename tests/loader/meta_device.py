"""Augmentations on torch's meta device, which has no values: what waits for a device or copies to it fails there."""

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


class DeviceOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets no tensor of the host be used or made."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs, result))
        assert all(leaf.device.type == "meta" for leaf in leaves if isinstance(leaf, Tensor)), func
        return result


def run_on_device(transform: Callable[[Batch], Batch], columns: dict[str, Tensor] | None = None) -> Batch:
    """On the meta device, which has no values: what needs one on the host fails there."""
    images = torch.empty((9, 8, 6, 3), dtype=torch.uint8, device="meta")
    batch = dataclasses.replace(batch_of(images), columns=columns or {})
    transform(batch)  # constants are made
    with DeviceOnly(), pytest.MonkeyPatch.context() as patch:  # type: ignore[no-untyped-call]
        patch.delattr(torch, "tensor")  # it copies from the host where no mode sees it
        return transform(dataclasses.replace(batch, epoch=1))
