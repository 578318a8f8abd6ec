"""Make every call of class Device on an accelerator that is written in Python, and print what reaches it.

torch's CPU build can register such an accelerator, for the life of the process. Its streams and events are torch.Stream
and torch.Event; they exist, but do nothing. Run: python -m tests.loader.python_accelerator
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from decodeonce.loader.delivery import find_device
from decodeonce.loader.streams import Device

NAME = "toy"
calls: list[str] = []


class ToyTensor(torch.Tensor):
    """A tensor of the accelerator without memory."""


def make(shape: Any, dtype: torch.dtype) -> Tensor:
    tensor: Tensor = torch._C._acc.create_empty_tensor(shape, dtype)
    tensor.__class__ = ToyTensor
    return tensor


def empty(size: Any, *, dtype: torch.dtype, **options: Any) -> Tensor:
    calls.append("empty")
    return make(size, dtype)


def empty_strided(size: Any, stride: Any, *, dtype: torch.dtype, **options: Any) -> Tensor:
    return make(size, dtype)


def copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    calls.append(f"copy of {source.device.type} memory, non_blocking={non_blocking}")
    return target


def index_copy(target: Tensor, dim: int, places: Tensor, rows: Tensor) -> Tensor:
    calls.append("index_copy_")
    return target


def index_select(source: Tensor, dim: int, places: Tensor) -> Tensor:
    calls.append("index_select")
    return make((len(places), *source.shape[1:]), source.dtype)


def view(source: Tensor, size: Any) -> Tensor:
    return make(size, source.dtype)


def record_stream(tensor: Tensor, stream: torch.Stream) -> None:
    calls.append(f"record_stream of {type(stream).__name__}")


OPERATORS: dict[str, Callable[..., object]] = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "_copy_from": copy,
    "index_copy_": index_copy,
    "index_select": index_select,
    "record_stream": record_stream,
    "view": view,
}


def failing(call: Any, *arguments: Any) -> str:
    """The error of a call that this accelerator does not support: the call exists, and torch passed it on."""
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return "no error"


def main() -> None:
    _setup_privateuseone_for_python_backend(NAME)
    for name, function in OPERATORS.items():
        torch.library.impl(f"aten::{name}", "privateuseone")(function)
    found = find_device(NAME)
    print("device", found)
    device = Device(found)
    stream = device.stream()
    device.set_stream(stream)
    print("streams", stream.device, device.current_stream() == stream)
    event: Any = device.record()
    stream.wait_event(event)
    print("event", type(event).__name__, event.device.type)
    print("synchronize:", failing(event.synchronize))
    print("query:", event.query())
    print("pinned:", failing(device.pinned, (2, 3)))
    print("pin:", failing(device.pin, torch.zeros(3)))
    cache, places = device.empty((5, 2)), torch.arange(3)
    rows, on_device = device.upload(torch.zeros((3, 2), dtype=torch.uint8)), device.upload(places)
    device.put(cache, on_device, rows)
    gathered = device.gather(cache, on_device)
    device.keep(gathered, stream)
    print("tensors", cache.device, tuple(gathered.shape))
    print("calls", ", ".join(calls))


if __name__ == "__main__":
    main()
