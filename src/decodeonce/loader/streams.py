"""Batches on an accelerator, copied to it on a side stream. Only Loaders with a device or a cache import this."""

from __future__ import annotations

import math
import mmap
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodeonce.loader.buffers import Event, Slot, Slots
from decodeonce.loader.delivery import Array, Batch, Delivery, PendingBatch, Shape
from decodeonce.loader.order import Rows

# One slot is copied to the device, one is being filled, and one is started while that finishes. More would only wait.
STREAM_SLOTS = 3
# A thread that waits for a device with synchronize() keeps a core busy, and does not notice that its epoch has ended.
DEVICE_POLL_SECONDS = 0.001


class Device:
    """CUDA, ROCm, XPU and other accelerators. "Current stream" means the current stream of the calling thread.

    The loader uses a device only through this class, so that tests can use a device whose copies finish late.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Any:
        """Create a stream, which has `wait_event(event)`."""
        return torch.Stream(device=self._device)

    def current_stream(self) -> Any:
        """The current stream."""
        return torch.accelerator.current_stream(self._device)

    def set_stream(self, stream: Any) -> None:
        """Make `stream` (and its device) the current one."""
        torch.accelerator.set_stream(stream)

    def record(self) -> Event:
        """Record a new event on the current stream. It has `synchronize()` and `query()`."""
        event: Event = self.current_stream().record_event()
        return event

    def pinned(self, shape: Shape) -> Tensor:
        """Allocate page-locked uint8 host memory."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type != "cpu")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a page-locked copy. torch reuses its memory only after copies from it to the device are done."""
        return tensor if self._device.type == "cpu" else tensor.pin_memory()

    def upload(self, tensor: Tensor) -> Tensor:
        """Copy page-locked memory to the device, queued on the current stream."""
        return tensor.to(self._device, non_blocking=True, copy=True)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """When `tensor` is freed, do not reuse its memory until `stream` has done the work queued by then."""
        if tensor.device.type != "cpu":  # a transform can leave a tensor on the host
            tensor.record_stream(stream)

    def empty(self, shape: Shape) -> Tensor:
        """Allocate uninitialized uint8 device memory."""
        return torch.empty(shape, dtype=torch.uint8, device=self._device)

    def put(self, target: Tensor, places: Tensor, rows: Tensor) -> None:
        """Set target[places[i]] = rows[i], queued on the current stream."""
        _wide(target).index_copy_(0, places, _wide(rows))

    def gather(self, source: Tensor, places: Tensor) -> Tensor:
        """Return a new tensor with source[places[i]], queued on the current stream."""
        return _wide(source).index_select(0, places).view(torch.uint8).view(len(places), *source.shape[1:])


def _wide(rows: Tensor) -> Tensor:
    """The same memory of uint8 rows as rows of int64, if their bytes divide: torch moves one element per thread."""
    flat = rows.flatten(1)
    return flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat


class NoWait:
    """A stream and an event for a device whose calls never need waiting."""

    def wait_event(self, event: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class HostDevice(Device):
    """The host as a device without streams: each call returns when its work is done."""

    def stream(self) -> NoWait:
        return NoWait()

    current_stream = record = stream

    def set_stream(self, stream: object) -> None:
        pass


def pinned_slots(device: Device, shape: Shape) -> Slots:
    """Slots in one block of page-locked memory, which is allocated when the first slot is taken.

    torch rounds each block up to a power of two: as blocks of their own, three batches of 256 rows of 320x320 would
    take 384 MiB instead of 256. In the block, which starts at a page boundary, every slot does (see
    `page_aligned_slot`).
    """
    nbytes = math.prod(shape)
    stride = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    left: list[Slot] = []

    def make() -> Slot:
        if not left:
            block = device.pinned((STREAM_SLOTS, stride))
            left.extend(Slot(memory[:nbytes].view(shape)) for memory in block.unbind())
        return left.pop(0)

    return Slots(make, STREAM_SLOTS)


class StreamDelivery(Delivery):
    """Batches that are copied to an accelerator on a side stream while the consumer's stream works.

    The filler's thread queues all its device work (copies and transform) on the side stream, in the order of batches.

    The memory of a dropped batch is free only when the consumer's stream has done its work on it. The host can queue
    the work of many steps, so the filler waits until the device has followed. Then at most `prefetch + 2` batches use
    memory, besides those that the user keeps: one is being made, `prefetch` were not received or have a receipt whose
    event is not done, and the consumer's stream still works on the batch that was received before these.
    """

    transfers = True

    def __init__(self, shape: Shape, device: Device, prefetch: int) -> None:
        super().__init__(pinned_slots(device, shape))
        self._device, self._prefetch = device, prefetch
        self._stream = device.stream()
        self._begun: Event | None = None
        # In an epoch. The filler counts the batches that it made, the consumer those that it received.
        self._made = self._received = 0
        # Events on the consumer's stream, also of earlier epochs. It has done its work on all batches that were
        # received before one of them when that event is done.
        self._receipts: deque[Event] = deque()

    def begin(self) -> None:
        self._made = self._received = 0  # batches that were not received are gone
        # Tensors that a transform reads (a mean, a model's weights) may not be ready yet on the consumer's stream.
        self._begun = self._device.record()

    def enter(self) -> None:
        self._device.set_stream(self._stream)  # each thread has its own current stream
        self._stream.wait_event(self._begun)

    def take(self) -> Slot:
        slot = super().take()
        if slot.copied is not None:
            slot.copied.synchronize()  # otherwise the next rows could overwrite data that is not copied yet
        return slot

    def hold(self, must_stop: Callable[[], bool]) -> float:
        start = time.perf_counter()
        # The left side is read first, because the consumer adds a receipt before it counts the batch as received.
        while self._prefetch - (self._made - self._received) < len(self._receipts):
            if self._receipts[0].query():
                self._receipts.popleft()
            elif must_stop():
                break
            else:
                time.sleep(DEVICE_POLL_SECONDS)
        return time.perf_counter() - start

    def make_batch(self, pending: PendingBatch, labels: Array, columns: dict[str, Array]) -> None:
        self._made += 1
        super().make_batch(pending, labels, columns)
        pending.usable_after = self._device.record()

    def receive(self, pending: PendingBatch) -> Batch:
        stream = self._device.current_stream()
        stream.wait_event(pending.usable_after)
        # The tensors were allocated on the side stream. When the user drops one, the allocator would give its memory to
        # the next copy on that stream at once, while kernels on the consumer's stream may still read it. `keep` delays
        # the reuse until the consumer's stream has done the work queued by then. To use a batch on a third stream,
        # the user must synchronize streams, as for any other tensor.
        for tensor in pending.batch.tensors():
            self._device.keep(tensor, stream)
        self._receipts.append(self._device.record())
        self._received += 1  # after the event, so that the batch counts all the time
        return pending.batch

    def _images(self, pending: PendingBatch) -> Tensor:
        slot = pending.slot
        try:
            uploaded = self._device.upload(slot.memory[: len(pending.rows)])
            slot.copied = self._device.record()
        finally:
            self.slots.give_back(slot)
        return uploaded

    def _move(self, array: Array) -> Tensor:
        return self._device.upload(self._device.pin(torch.from_numpy(array)))


class CachedDelivery(StreamDelivery):
    """Batches that are gathered from a cache in device memory. `rows`, ascending, all fit; each is uploaded once."""

    def __init__(self, shape: Shape, device: Device, prefetch: int, rows: range | Rows) -> None:
        super().__init__(shape, device, prefetch)
        try:
            self._cache = device.empty((len(rows), *shape[1:]))
        except RuntimeError as error:  # or its subclass torch.OutOfMemoryError
            nbytes = len(rows) * math.prod(shape[1:])
            advice = "use more ranks, a smaller store, or no cache"
            raise ValueError(f'cache="device": {nbytes / 1e9:.1f} GB of rows do not fit; {advice} ({error})') from error
        # The cache was allocated on the consumer's stream. When it is freed, the allocator of that stream would reuse
        # its memory at once, while rows are still gathered from it on the side stream.
        device.keep(self._cache, self._stream)
        self._rows = rows
        self._uploaded = np.zeros(len(rows), np.bool_)

    def lacking(self, rows: Rows) -> Rows:
        return np.unique(rows[~self._uploaded[self._places(rows)]])  # padding and weights repeat rows

    def close(self) -> None:
        super().close()
        del self._cache

    def _images(self, pending: PendingBatch) -> Tensor:
        uploaded, indexes = super()._images(pending), self._places(pending.rows)
        if len(indexes):
            self._device.put(self._cache, self._move(indexes), uploaded)
            # Another batch can have uploaded some of these rows after `lacking` was called.
            self.cached_rows += len(indexes) - int(np.count_nonzero(self._uploaded[indexes]))
            self._uploaded[indexes] = True
        return self._device.gather(self._cache, self._move(self._places(pending.step.rows)))

    def _places(self, rows: Rows) -> Rows:
        """The positions of these rows in the cache."""
        return rows - self._rows.start if isinstance(self._rows, range) else self._rows.searchsorted(rows)
