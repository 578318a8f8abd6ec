"""Marks in a profiler's trace, which show in TensorBoard and Perfetto where a step's time goes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd import profiler

NOTHING = nullcontext()


def mark(name: str) -> AbstractContextManager[Any]:
    """What passes inside is called decodeonce.<name> in the trace of a profiler that runs."""
    # record_function takes 5 us whether one runs or not, four times a step; this is what torch itself looks at.
    if getattr(profiler, "_is_profiler_enabled", True):
        return profiler.record_function(f"decodeonce.{name}")
    return NOTHING
