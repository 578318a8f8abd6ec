"""How fast page-locked memory goes to the device, on a stream beside the consumer's, as the Loader's batches do."""

from __future__ import annotations

import time

import torch

from decodeonce.loader.backend import Shape, StreamBackend, TorchBackend

SLOTS = 3


def transfer_rate(device: torch.device, shape: Shape, seconds: float, backend: StreamBackend | None = None) -> float:
    """Bytes a second of copies of whole batches, for about so long."""
    backend = backend or TorchBackend(device)
    slots = [backend.pinned(shape) for _ in range(SLOTS)]
    consumers = backend.current_stream()
    backend.set_stream(backend.stream())
    try:
        for slot in slots:  # the first ones allocate
            backend.upload(slot)
        backend.record().synchronize()
        sent, start = 0, time.perf_counter()
        while not sent or time.perf_counter() - start < seconds:
            for slot in slots:
                backend.upload(slot)
            backend.record().synchronize()
            sent += sum(slot.nbytes for slot in slots)
        return sent / (time.perf_counter() - start)
    finally:
        backend.set_stream(consumers)
