"""Where batches go: the slot itself on a host, or an accelerator's memory by a copy on a side stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.batch import Batch
from decodeonce.loader.ring import Ring, Slot, page_aligned_slot

Shape = tuple[int, ...]
Transform = Callable[[Batch], Batch]

# One slot being copied to the device, one filled or being filled, one begun while that ends: more would only wait.
STREAM_SLOTS = 3


@dataclass(frozen=True)
class Filled:
    """A batch in host memory: the first `len(rows)` rows of `slot`, and arrays of that length."""

    slot: Slot
    valid: int
    epoch: int
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sent:
    """A batch of `nbytes` bytes of pixels on its way to the consumer, who waits for `ready` before touching it."""

    batch: Batch
    nbytes: int
    ready: Any = None


class Side(Protocol):
    """The way from slots to the consumer's batches. `begin` and `receive` belong to the consumer's thread, the rest to
    the filler's."""

    ring: Ring

    def begin(self) -> None:
        """An epoch begins."""

    def enter(self) -> None:
        """The filler's thread begins."""

    def take(self) -> Slot:
        """A slot that may be overwritten."""

    def send(self, filled: Filled) -> Sent:
        """Move a batch on, transformed; its slot comes back to the ring by itself."""

    def receive(self, sent: Sent) -> Batch:
        """What the consumer may use from now on, for as long as it is held."""


class HostSide:
    """Batches that are their slots; for a device without streams (MPS), copied there, and the copy waited for."""

    def __init__(self, shape: Shape, prefetch: int, device: torch.device, transform: Transform | None) -> None:
        # `prefetch` batches are made or in the making, and the user holds one while taking the next.
        self.ring = Ring(lambda: page_aligned_slot(shape), prefetch + 2)
        self._device = device
        self._transform = transform

    def begin(self) -> None:
        pass

    def enter(self) -> None:
        pass

    def take(self) -> Slot:
        return self.ring.take()

    def send(self, filled: Filled) -> Sent:
        lent = self.ring.lend(filled.slot, len(filled.rows))
        return Sent(_batch(filled, self._move(lent), self._move, self._transform), lent.nbytes)

    def receive(self, sent: Sent) -> Batch:
        return sent.batch

    def _move(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


class StreamLike(Protocol):
    """What is used of torch.Stream."""

    def wait_event(self, event: Any) -> None: ...


class StreamBackend(Protocol):
    """What an accelerator must offer, so that tests can put one in whose copies finish late."""

    def stream(self) -> StreamLike:
        """A new stream."""

    def current_stream(self) -> StreamLike:
        """The calling thread's current stream."""

    def set_stream(self, stream: Any) -> None:
        """Make `stream` (and its device) the calling thread's current one."""

    def record(self) -> Any:
        """A new event, recorded on the calling thread's current stream; it has `synchronize()`."""

    def pinned(self, shape: Shape) -> Tensor:
        """Page-locked uint8 host memory."""

    def pin(self, tensor: Tensor) -> Tensor:
        """A page-locked copy, not used again before what was copied from it on the device has been copied."""

    def upload(self, tensor: Tensor) -> Tensor:
        """A device copy of page-locked memory, made on the calling thread's current stream, not waited for."""

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """When `tensor` dies, do not use its memory again before what `stream` then has to do is done."""


class TorchBackend:
    """CUDA, ROCm, XPU and others through torch's device-agnostic interface."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> torch.Stream:
        return torch.Stream(device=self._device)

    def current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self._device)

    def set_stream(self, stream: Any) -> None:
        torch.accelerator.set_stream(stream)

    def record(self) -> torch.Event:
        return self.current_stream().record_event()

    def pinned(self, shape: Shape) -> Tensor:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def pin(self, tensor: Tensor) -> Tensor:
        # torch's pinned allocator itself waits for copies out of a block before it hands the block out again.
        return tensor.pin_memory()

    def upload(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


class StreamSide:
    """Batches copied to an accelerator on a side stream, behind the consumer's work.

    All device work of the filler's thread, copies and transform, is queued on the side stream, in the order of batches.
    """

    def __init__(self, shape: Shape, backend: StreamBackend, transform: Transform | None) -> None:
        self.ring = Ring(lambda: self._slot(shape), STREAM_SLOTS)
        self._backend = backend
        self._transform = transform
        self._stream = backend.stream()
        self._begun: Any = None

    def begin(self) -> None:
        # What a transform reads (a mean, a model's weights) may still be in the making on the consumer's stream.
        self._begun = self._backend.record()

    def enter(self) -> None:
        self._backend.set_stream(self._stream)  # current streams are a thread's own
        self._stream.wait_event(self._begun)

    def take(self) -> Slot:
        slot = self.ring.take()
        if slot.copied is not None:
            slot.copied.synchronize()  # else the next rows would overwrite what the device has yet to copy
        return slot

    def send(self, filled: Filled) -> Sent:
        slot = filled.slot
        assert slot.pinned is not None
        images = self._backend.upload(slot.pinned[: len(filled.rows)])
        slot.copied = self._backend.record()
        self.ring.give_back(slot)
        batch = _batch(filled, images, self._move, self._transform)
        return Sent(batch, images.nbytes, self._backend.record())

    def receive(self, sent: Sent) -> Batch:
        stream = self._backend.current_stream()
        stream.wait_event(sent.ready)
        # The tensors were allocated on the side stream, and when the user drops one, the allocator would let the next
        # copy on that stream have its memory at once, while kernels that the consumer has queued may yet read it. A
        # tensor kept for the consumer's stream is not used again before the work that this stream has when it dies.
        # For use on any third stream the user orders streams as with every other tensor.
        for tensor in sent.batch.tensors():
            self._backend.keep(tensor, stream)
        return sent.batch

    def _move(self, array: NDArray[Any]) -> Tensor:
        return self._backend.upload(self._backend.pin(torch.from_numpy(array)))

    def _slot(self, shape: Shape) -> Slot:
        pinned = self._backend.pinned(shape)
        return Slot(pinned.numpy(), pinned)


def make_side(device: str | torch.device, shape: Shape, prefetch: int, transform: Transform | None) -> Side:
    """The side for a device and slots of `shape`; ValueError where this torch has no such device."""
    device = torch.device(device)
    if device.type != "cpu":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if found is None or found.type != device.type:
            raise ValueError(f'device "{device}": this machine and torch {torch.__version__} have {found or "cpu"}')
        if device.index is None:
            device = torch.device(device.type, torch.accelerator.current_device_index())
    if device.type in ("cpu", "mps"):
        return HostSide(shape, prefetch, device, transform)
    return StreamSide(shape, TorchBackend(device), transform)


def _batch(
    filled: Filled, images: Tensor, move: Callable[[NDArray[Any]], Tensor], transform: Transform | None
) -> Batch:
    columns = {name: move(column) for name, column in filled.columns.items()}
    batch = Batch(images, move(filled.labels), move(filled.rows), filled.valid, filled.epoch, columns)
    if transform is None:
        return batch
    transformed = transform(batch)
    if not isinstance(transformed, Batch):
        raise TypeError(f"transform returned {type(transformed).__name__}, expected a Batch (see dataclasses.replace)")
    return transformed
