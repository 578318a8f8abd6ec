"""Functions compiled with torch.compile see the right batches, also when they replay CUDA graphs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._triton import has_triton

from decodeonce import Loader
from tests.gpu.consumer import weigh

BATCH = 128


@pytest.fixture
def compiler(device: torch.device) -> Iterator[None]:
    """Skip a test if torch cannot compile for the accelerator; forget what it compiled."""
    if not has_triton() or not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        pytest.skip("compiling for an accelerator needs Triton and a C compiler")
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_function_sees_the_batches_of_the_host(
    larger: Path, device: torch.device, compiler: None, mode: str
) -> None:
    compiled = torch.compile(weigh, mode=mode)
    found = []
    with Loader(larger, batch_size=BATCH, seed=1, device=device) as loader:
        for batch in (batch for _ in range(3) for batch in loader):
            torch.compiler.cudagraph_mark_step_begin()
            found.append(compiled(batch.images).clone())  # a later replay overwrites the result itself
    with Loader(larger, batch_size=BATCH, seed=1) as loader:
        expected = [weigh(batch.images) for _ in range(3) for batch in loader]
    assert torch.equal(torch.stack(found).cpu(), torch.stack(expected))
