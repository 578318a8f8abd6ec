"""Every name of torch that class Device uses exists, and every call reaches an accelerator.

Device uses names that torch documents for all accelerators, so that CUDA, ROCm and XPU need no code of their own:

- https://docs.pytorch.org/docs/stable/accelerator.html: current_accelerator, current_device_index, current_stream,
  device_count, is_available, set_stream
- https://docs.pytorch.org/docs/stable/generated/torch.Stream.html: record_event, wait_event
- https://docs.pytorch.org/docs/stable/generated/torch.Event.html: synchronize
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.pin_memory.html: for the current accelerator
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html

ROCm has the names of CUDA: https://docs.pytorch.org/docs/stable/notes/hip.html. XPU has the methods of torch.Stream and
torch.Event: https://docs.pytorch.org/docs/stable/generated/torch.xpu.Stream.html and torch.xpu.Event.html. Its
record_stream came with torch 2.6, the oldest that is allowed: https://github.com/intel/torch-xpu-ops/issues/1055.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils import backend_registration


def test_every_name_exists_also_without_an_accelerator() -> None:
    for name in (
        "current_accelerator",
        "current_device_index",
        "current_stream",
        "device_count",
        "is_available",
        "set_stream",
    ):
        assert callable(getattr(torch.accelerator, name))


@pytest.mark.parametrize("backend", [torch, torch.cuda, torch.xpu])
def test_streams_and_events_of_each_backend_have_the_methods(backend: Any) -> None:
    for owner, name in (
        (backend.Stream, "record_event"),
        (backend.Stream, "wait_event"),
        (backend.Event, "synchronize"),
    ):
        assert callable(getattr(owner, name))


REACHED = """\
device toy:0
streams toy:0 True
event Event toy
synchronize: Backend doesn't support synchronizing events.
pinned: You should register `PrivateUse1HooksInterface`by `RegisterPrivateUse1HooksInterface` and implement \
`getPinnedMemoryAllocator` at the same time for PrivateUse1.
pin: You should register `PrivateUse1HooksInterface`by `RegisterPrivateUse1HooksInterface` and implement \
`getPinnedMemoryAllocator` at the same time for PrivateUse1.
tensors toy:0 (3, 2)
calls empty, copy of cpu memory, non_blocking=True, copy of cpu memory, non_blocking=True, index_copy_, index_select, \
record_stream of Stream
"""


def test_every_call_reaches_the_accelerator() -> None:
    """The accelerator is written in Python. It has streams and events, but can neither wait for one nor pin memory."""
    if torch.accelerator.is_available() or not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has an accelerator, or cannot register one that is written in Python")
    command = [sys.executable, "-m", "tests.loader.python_accelerator"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, REACHED), done.stderr
