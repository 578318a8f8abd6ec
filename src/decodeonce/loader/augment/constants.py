"""Constants on a device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """These values on the device, copied there once."""
    # The copy is waited for, so that any stream may use the constant from then on
    return torch.tensor(values, dtype=dtype, device=device)
