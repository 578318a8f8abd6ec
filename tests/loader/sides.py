"""Loaders whose batches take another way to the device, and what their batches hold."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import decodeonce.loader.device as device_module
import decodeonce.loader.loader as loader_module
from decodeonce import Loader
from decodeonce.loader.device import Side

Contents = list[tuple[list[int], int, list[int], bytes]]


@contextmanager
def sides(make: Callable[..., Side]) -> Iterator[None]:
    """Loaders made inside get their side from `make(shape)`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_module, "make_side", lambda _, shape, *__: make(shape))
        yield


def without(line: str) -> Any:
    """StreamSide as it would be without one line."""
    source = inspect.getsource(device_module)
    assert source.count(line) == 1
    mutant = types.ModuleType("mutant")
    vars(mutant)["__name__"] = device_module.__name__  # dataclasses look their module up
    exec(compile(source.replace(line, "pass"), "mutant", "exec"), vars(mutant))
    return mutant.StreamSide


def contents(loader: Loader, epochs: int) -> Contents:
    """Rows, valid rows, labels and pixels of each batch."""
    return [
        (b.rows.tolist(), b.valid, b.labels.tolist(), b.images.numpy().tobytes()) for _ in range(epochs) for b in loader
    ]
