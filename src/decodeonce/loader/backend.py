"""What differs between accelerators: streams, events and memory, behind one small interface."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from decodeonce.loader.ring import page_aligned_slot

Shape = tuple[int, ...]


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

    def empty(self, shape: Shape) -> Tensor:
        """Device memory, uint8, with anything in it."""

    def put(self, target: Tensor, places: Tensor, rows: Tensor) -> None:
        """target[places[i]] = rows[i], on the calling thread's current stream."""

    def gather(self, source: Tensor, places: Tensor) -> Tensor:
        """A new tensor of source[places[i]], made on the calling thread's current stream."""


class DeviceMemory:
    """Memory of a device of torch's: what is the same with streams and without."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def empty(self, shape: Shape) -> Tensor:
        return torch.empty(shape, dtype=torch.uint8, device=self._device)

    def put(self, target: Tensor, places: Tensor, rows: Tensor) -> None:
        target.index_copy_(0, places, rows)

    def gather(self, source: Tensor, places: Tensor) -> Tensor:
        return source.index_select(0, places)


class TorchBackend(DeviceMemory):
    """CUDA, ROCm, XPU and others through torch's device-agnostic interface."""

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
        if tensor.device.type == self._device.type:  # a transform may have left one on the host
            tensor.record_stream(stream)


class Done:
    """The stream and the event of a device where nothing is ever left to wait for."""

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class InlineBackend(DeviceMemory):
    """A device without streams (MPS), or the host: every call returns when its work is done."""

    def stream(self) -> Done:
        return Done()

    def current_stream(self) -> Done:
        return Done()

    def set_stream(self, stream: Any) -> None:
        pass

    def record(self) -> Done:
        return Done()

    def pinned(self, shape: Shape) -> Tensor:
        return torch.from_numpy(page_aligned_slot(shape).pixels)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor

    def upload(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, copy=True)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        pass
