"""The state of a Loader resumes on the device and on the host, whatever was queued on the device when it was taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from decodeonce import Loader
from tests.gpu.consumer import consume, on_host
from tests.loader.deliveries import Contents, content, contents

SETTINGS: dict[str, Any] = {"batch_size": 7, "seed": 5, "tail": "keep"}
STEPS = 9


@pytest.mark.parametrize("cache", [None, "device"])
@pytest.mark.parametrize("done", [0, 1, 5, STEPS])
def test_state_resumes_on_the_device_and_on_the_host(store: Path, device: torch.device, done: int, cache: Any) -> None:
    epochs = on_host(store, 2, **SETTINGS)
    rest = epochs[done:STEPS] or epochs[STEPS:]
    with Loader(store, device=device, cache=cache, **SETTINGS) as loader:
        batches = iter(loader)
        for _ in range(done):
            next(batches)
        state = loader.state_dict()
    with Loader(store, device=device, cache=cache, **SETTINGS) as resumed:
        resumed.load_state_dict(state)
        assert consume(resumed, 1, device) == rest
    with Loader(store, **SETTINGS) as resumed:
        resumed.load_state_dict(state)
        assert contents(resumed, 1) == rest


def test_epoch_resumed_after_each_step_is_complete(store: Path, device: torch.device) -> None:
    seen: Contents = []
    with Loader(store, device=device, **SETTINGS) as loader:
        for _ in range(STEPS):
            loader.load_state_dict(loader.state_dict())
            seen += [content(batch) for _, batch in zip(range(1), loader, strict=False)]
    assert seen == on_host(store, 1, **SETTINGS)
