"""Replace the delivery of Loaders, and compare the contents of their batches."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import decodeonce.loader.delivery as delivery_module
import decodeonce.loader.loader as loader_module
from decodeonce import Loader
from decodeonce.loader.delivery import Delivery

Contents = list[tuple[list[int], int, list[int], bytes]]


@contextmanager
def replace_delivery(make: Callable[..., Delivery]) -> Iterator[None]:
    """Loaders that are created inside the block get their delivery from `make(shape)`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_module, "make_delivery", lambda _, shape, *__: make(shape))
        yield


def delivery_without(line: str, kind: str = "StreamDelivery") -> Any:
    """The class `kind` of the delivery module, with one line removed."""
    source = inspect.getsource(delivery_module)
    assert source.count(line) == 1
    mutant = types.ModuleType("mutant")
    vars(mutant)["__name__"] = delivery_module.__name__  # dataclasses look up their module by name
    exec(compile(source.replace(line, "pass"), "mutant", "exec"), vars(mutant))
    return vars(mutant)[kind]


def contents(loader: Loader, epochs: int) -> Contents:
    """The rows, valid rows, labels and pixels of each batch."""
    return [
        (b.rows.tolist(), b.valid, b.labels.tolist(), b.images.numpy().tobytes()) for _ in range(epochs) for b in loader
    ]
