"""CUDA graphs and compiled functions see the right batches, also if a graph is captured in the middle of an epoch.

With the default, `capture_error_mode="global"`, CUDA lets calls of other threads fail during a capture
(https://docs.pytorch.org/docs/stable/generated/torch.cuda.graph.html). The Loader's threads run only in an epoch.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._triton import has_triton

from decodeonce import Loader
from tests.gpu.consumer import weigh

BATCH, STEPS, EPOCHS = 128, 8, 3


class Graph:
    """The graph of `weigh` for one place in memory."""

    def __init__(self, device: torch.device, capture_error_mode: str) -> None:
        self._images = torch.zeros((BATCH, 64, 64, 3), dtype=torch.uint8, device=device)
        weigh(self._images)  # loads the kernels
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode=capture_error_mode):
            self._weights = weigh(self._images)

    def replay(self, images: Tensor) -> Tensor:
        self._images.copy_(images)
        self._graph.replay()
        return self._weights.clone()


@pytest.fixture
def expected(larger: Path) -> Tensor:
    """The weights of all images on the host."""
    with Loader(larger, batch_size=BATCH, seed=1) as loader:
        return torch.stack([weigh(batch.images) for _ in range(EPOCHS) for batch in loader])


@pytest.mark.parametrize(
    ("step", "mode"), [(0, "global"), (STEPS, "global"), (0, "thread_local"), (1, "thread_local"), (5, "thread_local")]
)
def test_graph_captured_in_or_between_epochs(
    larger: Path, cuda: torch.device, expected: Tensor, step: int, mode: str
) -> None:
    found: list[Tensor] = []
    graph: Graph | None = None
    with Loader(larger, batch_size=BATCH, seed=1, device=cuda) as loader:
        for _ in range(EPOCHS):
            if (len(found), mode) == (step, "global"):
                graph = Graph(cuda, mode)
            for batch in loader:
                if (len(found), mode) == (step, "thread_local"):
                    graph = Graph(cuda, mode)
                found.append(graph.replay(batch.images) if graph else weigh(batch.images))
    assert graph is not None
    assert torch.equal(torch.stack(found).cpu(), expected)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])  # the second replays CUDA graphs
def test_compiled_function_sees_batches_of_host(
    larger: Path, device: torch.device, expected: Tensor, mode: str
) -> None:
    if not has_triton() or not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        pytest.skip("compiling for an accelerator needs Triton and a C compiler")
    compiled = torch.compile(weigh, mode=mode)
    found = []
    with Loader(larger, batch_size=BATCH, seed=1, device=device) as loader:
        for batch in (batch for _ in range(EPOCHS) for batch in loader):
            torch.compiler.cudagraph_mark_step_begin()
            found.append(compiled(batch.images).clone())  # a later replay overwrites the result itself
    torch.compiler.reset()
    assert torch.equal(torch.stack(found).cpu(), expected)
