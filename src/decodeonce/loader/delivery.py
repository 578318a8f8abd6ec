"""Delivery: from filled slots to batches on the host, or on an accelerator by copies on a side stream."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.batch import Batch, Transform
from decodeonce.loader.memory import recycle_for
from decodeonce.loader.meter import mark
from decodeonce.loader.order import Rows
from decodeonce.loader.partition import Step
from decodeonce.loader.slots import Slot, Slots, page_aligned_slot

Array = NDArray[Any]
Shape = tuple[int, ...]
Result = tuple[float, float] | BaseException  # what a copying thread spent, see meter.timed, or why it failed

# One slot being copied to the device, one filled or being filled, one begun while that ends: more would only wait.
STREAM_SLOTS = 3


class Device:
    """CUDA, ROCm, XPU and other accelerators. "Current stream" means that of the calling thread.

    This is all that the loader asks of a device, so that tests can use one whose copies finish late.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Any:
        """A new stream; it has `wait_event(event)`."""
        return torch.Stream(device=self._device)

    def current_stream(self) -> Any:
        """The current stream."""
        return torch.accelerator.current_stream(self._device)

    def set_stream(self, stream: Any) -> None:
        """Make `stream` (and its device) the current one."""
        torch.accelerator.set_stream(stream)

    def record(self) -> Any:
        """A new event, recorded on the current stream; it has `synchronize()`."""
        return self.current_stream().record_event()

    def pinned(self, shape: Shape) -> Tensor:
        """Page-locked uint8 host memory."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type != "cpu")

    def pin(self, tensor: Tensor) -> Tensor:
        """A page-locked copy; torch reuses its memory only after copies from it to the device are done."""
        return tensor if self._device.type == "cpu" else tensor.pin_memory()

    def upload(self, tensor: Tensor) -> Tensor:
        """A device copy of page-locked memory, queued on the current stream."""
        return tensor.to(self._device, non_blocking=True, copy=True)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """When `tensor` is freed, do not reuse its memory before `stream` has done what it has queued by then."""
        if tensor.device.type != "cpu":  # a transform may have left one on the host
            tensor.record_stream(stream)

    def empty(self, shape: Shape) -> Tensor:
        """Uninitialised uint8 device memory."""
        return torch.empty(shape, dtype=torch.uint8, device=self._device)

    def put(self, target: Tensor, places: Tensor, rows: Tensor) -> None:
        """target[places[i]] = rows[i], queued on the current stream."""
        target.index_copy_(0, places, rows)

    def gather(self, source: Tensor, places: Tensor) -> Tensor:
        """A new tensor of source[places[i]], queued on the current stream."""
        return source.index_select(0, places)


class Done:
    """The stream and the event of a device that leaves nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class HostDevice(Device):
    """The host as a device without streams: every call returns when its work is done."""

    def stream(self) -> Done:
        return Done()

    current_stream = record = stream

    def set_stream(self, stream: Any) -> None:
        pass


@dataclass(eq=False)
class Filled:
    """A step whose `rows`, all or those that the device lacks, are read into the first rows of `slot`.

    The reading is done when `done` has given one item for each of its `parts`.
    """

    step: Step
    rows: Rows
    slot: Slot
    parts: int = 0
    done: SimpleQueue[Result] = field(default_factory=SimpleQueue)


class Sent(NamedTuple):
    """A batch of `rows` rows, to be used after the event `ready`; the transform kept its thread for so many seconds."""

    batch: Batch
    rows: int
    ready: Any
    seconds_transforming: float


class Delivery:
    """Batches on the host: each is its slot, which comes back when the user drops the batch.

    The consumer's thread calls `begin` and `receive`, the filler's thread all else.
    """

    transfers = False  # whether batches are copied to a device

    def __init__(self, slots: Slots, transform: Transform | None) -> None:
        self.slots = slots
        self._transform = transform
        self._end_recycling = recycle_for(self)  # what a transform allocates on a CPU

    def begin(self) -> None:
        """An epoch begins."""

    def enter(self) -> None:
        """The filler's thread begins."""

    def lacking(self, rows: Rows) -> Rows:
        """Those of `rows` that have to be read."""
        return rows

    def cached_rows(self) -> int:
        """How many rows need no reading any more."""
        return 0

    def take(self) -> Slot:
        """A slot that may be overwritten."""
        return self.slots.take()

    def send(self, filled: Filled, labels: Array, columns: dict[str, Array]) -> Sent:
        """Move a batch on and transform it; its slot comes back on its own."""
        step, images = filled.step, self._images(filled)
        moved = {name: self._move(column) for name, column in columns.items()}
        batch = Batch(images, self._move(labels), self._move(step.rows), step.valid, step.epoch, moved)
        made, seconds = batch, 0.0
        if self._transform is not None:
            start = time.perf_counter()
            with torch.no_grad(), mark("transform"):
                made = self._transform(batch)
            seconds = time.perf_counter() - start
        if not isinstance(made, Batch):
            raise TypeError(f"transform returned {type(made).__name__}, expected a Batch (see dataclasses.replace)")
        if odd := {type(part).__name__ for part in made.tensors() if not isinstance(part, Tensor)}:
            raise TypeError(f"transform returned a Batch with {', '.join(odd)} in it, expected tensors")
        return Sent(made, len(step.rows), self._record(), seconds)

    def receive(self, sent: Sent) -> Batch:
        """The batch, which the consumer may use from now on for as long as it is held."""
        return sent.batch

    def close(self) -> None:
        """Drop slots and cache."""
        self.slots.close()
        self._end_recycling()

    def _images(self, filled: Filled) -> Tensor:
        return torch.from_numpy(self.slots.lend(filled.slot, len(filled.rows)))

    def _move(self, array: Array) -> Tensor:
        return torch.from_numpy(array)

    def _record(self) -> Any:
        return None


class StreamDelivery(Delivery):
    """Batches copied to an accelerator on a side stream, while the consumer's stream works.

    All device work of the filler's thread, copies and transform, is queued on the side stream, in the order of batches.
    """

    transfers = True

    def __init__(self, shape: Shape, device: Device, transform: Transform | None) -> None:
        super().__init__(Slots(lambda: Slot(device.pinned(shape)), STREAM_SLOTS), transform)
        self._device = device
        self._stream = device.stream()
        self._begun: Any = None

    def begin(self) -> None:
        # What a transform reads (a mean, a model's weights) may still be computed on the consumer's stream.
        self._begun = self._device.record()

    def enter(self) -> None:
        self._device.set_stream(self._stream)  # each thread has its own current stream
        self._stream.wait_event(self._begun)

    def take(self) -> Slot:
        slot = self.slots.take()
        if slot.copied is not None:
            slot.copied.synchronize()  # else the next rows would overwrite what the device has yet to copy
        return slot

    def receive(self, sent: Sent) -> Batch:
        stream = self._device.current_stream()
        stream.wait_event(sent.ready)
        # The tensors were allocated on the side stream. When the user drops one, the allocator would give its memory to
        # the next copy on that stream at once, while kernels that the consumer has queued may still read it. Memory of
        # a tensor that is kept for the consumer's stream is reused only after the work this stream has queued by then.
        # To use a batch on any third stream, the user orders streams as with every other tensor.
        for tensor in sent.batch.tensors():
            self._device.keep(tensor, stream)
        return sent.batch

    def _images(self, filled: Filled) -> Tensor:
        slot = filled.slot
        try:
            uploaded = self._device.upload(slot.memory[: len(filled.rows)])
            slot.copied = self._device.record()
        finally:
            self.slots.give_back(slot)
        return uploaded

    def _move(self, array: Array) -> Tensor:
        return self._device.upload(self._device.pin(torch.from_numpy(array)))

    def _record(self) -> Any:
        return self._device.record()


class CachedDelivery(StreamDelivery):
    """Batches gathered from the device's memory, which has space for `rows`, ascending; each is uploaded once."""

    def __init__(self, shape: Shape, device: Device, transform: Transform | None, rows: range | Rows) -> None:
        super().__init__(shape, device, transform)
        try:
            self._cache = device.empty((len(rows), *shape[1:]))
        except RuntimeError as error:  # torch.OutOfMemoryError is one; the host's allocator raises it as it is
            nbytes = len(rows) * math.prod(shape[1:])
            advice = "use more ranks, a smaller store, or no cache"
            raise ValueError(f'cache="device": {nbytes / 1e9:.1f} GB of rows do not fit; {advice} ({error})') from error
        # It was allocated on the consumer's stream. When it dies, that stream's allocator would reuse its memory at
        # once, while rows are still gathered from it on the side stream.
        device.keep(self._cache, self._stream)
        self._rows = rows
        self._uploaded = np.zeros(len(rows), np.bool_)

    def lacking(self, rows: Rows) -> Rows:
        return rows[~self._uploaded[self._places(rows)]]

    def cached_rows(self) -> int:
        return int(self._uploaded.sum())

    def close(self) -> None:
        super().close()
        del self._cache

    def _images(self, filled: Filled) -> Tensor:
        uploaded, indexes = super()._images(filled), self._places(filled.rows)
        if len(indexes):
            self._device.put(self._cache, self._move(indexes), uploaded)
            self._uploaded[indexes] = True
        return self._device.gather(self._cache, self._move(self._places(filled.step.rows)))

    def _places(self, rows: Rows) -> Rows:
        """Where these rows are in the cache."""
        return rows - self._rows.start if isinstance(self._rows, range) else self._rows.searchsorted(rows)


def make_delivery(
    device: torch.device, shape: Shape, prefetch: int, transform: Transform | None, cached: range | Rows | None
) -> Delivery:
    """The delivery to a device in slots of `shape`; `cached` are the rows to keep in the device's memory."""
    target = (HostDevice if device.type == "cpu" else Device)(device)
    if cached is not None:
        return CachedDelivery(shape, target, transform, cached)
    if device.type != "cpu":
        return StreamDelivery(shape, target, transform)
    # `prefetch` batches are ready or being made, and the user holds one while taking the next.
    return Delivery(Slots(partial(page_aligned_slot, shape), prefetch + 2), transform)


def find_device(device: str | torch.device) -> torch.device:
    """The device with its index.

    Raises:
        ValueError: If this machine does not have it.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return device
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or found.type != device.type:
        raise ValueError(f'device "{device}": this machine and torch {torch.__version__} have {found or "cpu"}')
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    if index >= (count := torch.accelerator.device_count()):
        last = f"{device.type}:{count - 1}"
        raise ValueError(f'device "{device}": this machine has {count}, "{device.type}:0" to "{last}"')
    return torch.device(device.type, index)
