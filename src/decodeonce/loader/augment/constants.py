"""Constants on a device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of `values` on the device. Each constant is copied there only once."""
    # torch.tensor waits for the copy, so any stream can use the constant afterwards.
    return torch.tensor(values, dtype=dtype, device=device)
