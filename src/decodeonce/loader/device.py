"""Where batches go: the slot itself on a host, or an accelerator's memory by a copy on a side stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from decodeonce.loader.backend import InlineBackend, Shape, StreamBackend, TorchBackend
from decodeonce.loader.batch import Batch
from decodeonce.loader.cache import DeviceCache
from decodeonce.loader.ring import Ring, Slot, page_aligned_slot
from decodeonce.loader.steps import Rows, Step

Transform = Callable[[Batch], Batch]

# One slot being copied to the device, one filled or being filled, one begun while that ends: more would only wait.
STREAM_SLOTS = 3


@dataclass(frozen=True)
class Filled:
    """A step in host memory: rows `read` of it are the first rows of `slot`, which is None where none were read."""

    step: Step
    read: Rows
    slot: Slot | None
    labels: NDArray[Any]
    columns: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Sent:
    """A batch of `rows` rows and `nbytes` bytes of pixels on its way to the consumer, who waits for `ready` first."""

    batch: Batch
    rows: int
    nbytes: int
    ready: Any = None


class Side(Protocol):
    """The way from slots to the consumer's batches. `begin` and `receive` belong to the consumer's thread, the rest to
    the filler's."""

    ring: Ring
    cache: DeviceCache | None

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

    def close(self) -> None:
        """Let go of slots and cache."""


class HostSide:
    """Batches that are their slots."""

    cache: DeviceCache | None = None

    def __init__(self, shape: Shape, prefetch: int, transform: Transform | None) -> None:
        # `prefetch` batches are made or in the making, and the user holds one while taking the next.
        self.ring = Ring(partial(page_aligned_slot, shape), prefetch + 2)
        self._transform = transform

    def begin(self) -> None:
        pass

    def enter(self) -> None:
        pass

    def take(self) -> Slot:
        return self.ring.take()

    def send(self, filled: Filled) -> Sent:
        assert filled.slot is not None
        lent = self.ring.lend(filled.slot, len(filled.read))
        return _sent(filled, torch.from_numpy(lent), torch.from_numpy, self._transform)

    def receive(self, sent: Sent) -> Batch:
        return sent.batch

    def close(self) -> None:
        self.ring.close()


class StreamSide:
    """Batches copied to an accelerator on a side stream, behind the consumer's work.

    All device work of the filler's thread, copies and transform, is queued on the side stream, in the order of batches.
    """

    def __init__(
        self, shape: Shape, backend: StreamBackend, transform: Transform | None, cache: DeviceCache | None = None
    ) -> None:
        self.ring = Ring(partial(_pinned_slot, backend, shape), STREAM_SLOTS)
        self.cache = cache
        self._backend = backend
        self._transform = transform
        self._stream = backend.stream()
        self._begun: Any = None
        if cache is not None:
            # It was allocated on the consumer's stream, which would let others have its memory as soon as it dies,
            # while rows are still gathered from it on the side stream.
            backend.keep(cache.images, self._stream)

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
        sent = _sent(filled, self._images(filled), self._move, self._transform)
        return replace(sent, ready=self._backend.record())

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

    def close(self) -> None:
        self.ring.close()
        self.cache = None

    def _images(self, filled: Filled) -> Tensor:
        read = self._upload(filled)
        if self.cache is None:
            assert read is not None
            return read
        if read is not None:
            self.cache.keep(filled.read, read)
        return self.cache.batch(filled.step.rows)

    def _upload(self, filled: Filled) -> Tensor | None:
        slot = filled.slot
        if slot is None:
            return None
        assert slot.pinned is not None
        try:
            images = self._backend.upload(slot.pinned[: len(filled.read)])
            slot.copied = self._backend.record()
        finally:
            self.ring.give_back(slot)
        return images

    def _move(self, array: NDArray[Any]) -> Tensor:
        return self._backend.upload(self._backend.pin(torch.from_numpy(array)))


def make_side(
    device: torch.device, shape: Shape, prefetch: int, transform: Transform | None, cached: range | None
) -> Side:
    """The side for a device and slots of `shape`; `cached` are the rows to keep in the device's memory."""
    if device.type == "cpu" and cached is None:
        return HostSide(shape, prefetch, transform)
    backend: StreamBackend = InlineBackend(device) if device.type in ("cpu", "mps") else TorchBackend(device)
    cache = None if cached is None else DeviceCache(backend, cached, shape[1:])
    return StreamSide(shape, backend, transform, cache)


def find_device(device: str | torch.device) -> torch.device:
    """The device with its index; ValueError where there is none such."""
    device = torch.device(device)
    if device.type == "cpu":
        return device
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or found.type != device.type:
        raise ValueError(f'device "{device}": this machine and torch {torch.__version__} have {found or "cpu"}')
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    if index >= (count := torch.accelerator.device_count()):
        raise ValueError(
            f'device "{device}": this machine has {count}, "{device.type}:0" to "{device.type}:{count - 1}"'
        )
    return torch.device(device.type, index)


def _pinned_slot(backend: StreamBackend, shape: Shape) -> Slot:
    pinned = backend.pinned(shape)
    return Slot(pinned.numpy(), pinned)


def _sent(filled: Filled, images: Tensor, move: Callable[[NDArray[Any]], Tensor], transform: Transform | None) -> Sent:
    step, columns = filled.step, {name: move(column) for name, column in filled.columns.items()}
    batch = Batch(images, move(filled.labels), move(step.rows), step.valid, step.epoch, columns)
    with torch.no_grad():
        transformed = batch if transform is None else transform(batch)
    if not isinstance(transformed, Batch):
        raise TypeError(f"transform returned {type(transformed).__name__}, expected a Batch (see dataclasses.replace)")
    if odd := {type(part).__name__ for part in transformed.tensors() if not isinstance(part, Tensor)}:
        raise TypeError(f"transform returned a Batch with {', '.join(odd)} in it, expected tensors")
    return Sent(transformed, len(step.rows), images.nbytes)
