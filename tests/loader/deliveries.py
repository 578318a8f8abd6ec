"""Replace the delivery of Loaders, and compare the contents of their batches."""

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import decodeonce.loader.loader as loader_module
import decodeonce.loader.streams as streams_module
from decodeonce import Batch, Loader
from decodeonce.loader.delivery import Delivery

Content = tuple[list[int], int, list[int], bytes]
Contents = list[Content]

# The lines of StreamDelivery that wait, or make the allocator wait.
WAITS = (
    "stream.wait_event(pending.usable_after)",
    "slot.copied.synchronize()",
    "self._device.keep(tensor, stream)",
    "self._stream.wait_event(self._begun)",
)
# The line of CachedDelivery that makes the allocator wait.
CACHE_WAIT = "device.keep(self._cache, self._stream)"


@contextmanager
def replace_delivery(make: Callable[..., Delivery]) -> Iterator[None]:
    """Loaders that are created inside the block get their delivery from `make(shape, prefetch=...)`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_module, "make_delivery", lambda _, shape, prefetch, *__: make(shape, prefetch=prefetch))
        yield


def delivery_without(line: str, kind: str = "StreamDelivery") -> Any:
    """The class `kind` of the module of streams, with one line removed."""
    source = inspect.getsource(streams_module)
    assert source.count(line) == 1
    mutant = types.ModuleType("mutant")
    exec(compile(source.replace(line, "pass"), "mutant", "exec"), vars(mutant))
    return vars(mutant)[kind]


def content(batch: Batch) -> Content:
    """The rows, valid rows, labels and pixels of a batch on any device."""
    return batch.rows.tolist(), batch.valid, batch.labels.tolist(), batch.images.cpu().numpy().tobytes()


def contents(loader: Loader, epochs: int) -> Contents:
    """The contents of each batch."""
    return [content(batch) for _ in range(epochs) for batch in loader]


def assert_same_batches(found: Loader, expected: Loader) -> None:
    """Assert that two Loaders yield the same batches in two epochs and after resuming, and close them."""
    with found, expected:
        assert len(found) == len(expected)
        assert contents(found, 2) == contents(expected, 2)
        assert found.state_dict() == expected.state_dict()
        for loader in (found, expected):
            loader.load_state_dict(loader.state_dict() | {"rows_consumed": found.batch_size})
        assert contents(found, 1) == contents(expected, 1)
