"""A fake accelerator that does its work as late as possible: only when something waits for it.

Streams are queues of calls. Waiting for an event runs its stream up to the event and no further. If a stream waits for
an event of another stream, it runs that stream up to the event. Freed memory is reused at once by the next copy, as
caching allocators do within a stream. So a missing wait results in wrong pixels.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.streams import Device

Block = NDArray[np.uint8]


class FakeStream:
    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._work: deque[Callable[[], object]] = deque()

    def add(self, call: Callable[[], object]) -> None:
        with self._lock:
            self._work.append(call)

    def wait_event(self, event: FakeEvent) -> None:
        self.add(event.synchronize)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run the queued calls in order, until `until()` is true."""
        with self._lock:
            while self._work and not until():
                self._work.popleft()()


class FakeEvent:
    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self._done = False
        stream.add(self._set)

    def _set(self) -> None:
        self._done = True

    def synchronize(self) -> None:
        self._stream.run(lambda: self._done)

    def query(self) -> bool:
        """Do the work, too, because the Loader waits by asking until the answer is yes."""
        self.synchronize()
        return True


class FakeDevice(Device):
    """A fake device. `consumer` is the current stream of the consumer's thread."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._lock = threading.RLock()
        self.consumer = FakeStream(self._lock)
        self._current = threading.local()
        self._blocks: list[Block] = []  # all blocks ever allocated, so that raw pointers stay valid
        self._free: defaultdict[int, deque[Block]] = defaultdict(deque)
        self.copied_on: set[FakeStream] = set()
        self._kept: dict[int, FakeStream] = {}

    def stream(self) -> FakeStream:
        return FakeStream(self._lock)

    def current_stream(self) -> FakeStream:
        current: FakeStream = getattr(self._current, "stream", self.consumer)
        return current

    def set_stream(self, stream: FakeStream) -> None:
        self._current.stream = stream

    def record(self) -> FakeEvent:
        return FakeEvent(self.current_stream())

    def pinned(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=torch.uint8)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def upload(self, tensor: Tensor) -> Tensor:
        copy = self.empty(tuple(tensor.shape), tensor.dtype)
        target, stream = raw_bytes(copy), self.current_stream()
        self.copied_on.add(stream)
        stream.add(lambda: np.copyto(target, raw_bytes(tensor)))
        return copy

    def put(self, target: Tensor, places: Tensor, rows: Tensor) -> None:
        into, where, source = raw_rows(target), raw_bytes(places), raw_rows(rows)
        self.current_stream().add(lambda: into.__setitem__(where.view(np.int64), source))

    def gather(self, source: Tensor, places: Tensor) -> Tensor:
        rows, where = raw_rows(source), raw_bytes(places)
        gathered = self.empty((len(places), *source.shape[1:]))
        into = raw_rows(gathered)
        self.current_stream().add(lambda: np.copyto(into, rows[where.view(np.int64)]))
        return gathered

    def keep(self, tensor: Tensor, stream: FakeStream) -> None:
        self._kept[tensor.data_ptr()] = stream

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
        """Allocate a tensor in device memory; reused memory keeps its old contents."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        with self._lock:
            free = self._free[nbytes]
            block = free.popleft() if free else np.full(nbytes, 255, np.uint8)
            self._blocks.append(block)
        lent = np.ndarray((nbytes,), np.uint8, buffer=block.data)
        weakref.finalize(lent, self._freed, block).atexit = False
        return torch.from_numpy(lent).view(dtype).reshape(shape)

    def count(self, nbytes: int) -> int:
        """The number of blocks of this size that were ever allocated."""
        return len({block.ctypes.data for block in self._blocks if block.nbytes == nbytes})

    def _freed(self, block: Block) -> None:
        free, stream = self._free[block.nbytes], self._kept.pop(block.ctypes.data, None)
        if stream is None:
            free.append(block)
        else:
            stream.add(lambda: free.append(block))


def raw_bytes(tensor: Tensor) -> Block:
    """The memory of a contiguous tensor without a reference to the tensor, as a kernel gets it."""
    kind = ctypes.c_uint8 * (tensor.numel() * tensor.element_size())
    return np.ctypeslib.as_array(kind.from_address(tensor.data_ptr()))


def raw_rows(tensor: Tensor) -> Block:
    """The same memory as an array with one row per row of the tensor."""
    return raw_bytes(tensor).reshape(len(tensor), -1)
