"""CUDA graphs that are captured before an epoch, or while the Loader's threads use the device, see the right batches.

With the default, `capture_error_mode="global"`, CUDA lets calls of other threads fail during a capture
(https://docs.pytorch.org/docs/stable/generated/torch.cuda.graph.html). The Loader's threads run only in an epoch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from decodeonce import Loader
from tests.gpu.consumer import weigh

BATCH = 128
SHAPE = (BATCH, 64, 64, 3)


class Graph:
    """The graph of `weigh` for one place in memory."""

    def __init__(self, device: torch.device, capture_error_mode: str) -> None:
        self._images = torch.zeros(SHAPE, dtype=torch.uint8, device=device)
        weigh(self._images)  # loads the kernels
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode=capture_error_mode):
            self._weights = weigh(self._images)

    def replay(self, images: Tensor) -> Tensor:
        self._images.copy_(images)
        self._graph.replay()
        return self._weights.clone()


def weights_on_host(larger: Path, epochs: int) -> Tensor:
    with Loader(larger, batch_size=BATCH, seed=1) as loader:
        return torch.stack([weigh(batch.images) for _ in range(epochs) for batch in loader])


def test_graph_captured_before_the_first_epoch(larger: Path, cuda: torch.device) -> None:
    with Loader(larger, batch_size=BATCH, seed=1, device=cuda) as loader:
        graph = Graph(cuda, "global")
        found = torch.stack([graph.replay(batch.images) for _ in range(5) for batch in loader])
    assert torch.equal(found.cpu(), weights_on_host(larger, 5))


def test_graph_captured_between_two_epochs(larger: Path, cuda: torch.device) -> None:
    with Loader(larger, batch_size=BATCH, seed=1, device=cuda) as loader:
        found = [weigh(batch.images) for batch in loader]
        graph = Graph(cuda, "global")
        found += [graph.replay(batch.images) for batch in loader]
    assert torch.equal(torch.stack(found).cpu(), weights_on_host(larger, 2))


@pytest.mark.parametrize("step", [0, 1, 5])
def test_graph_captured_during_an_epoch(larger: Path, cuda: torch.device, step: int) -> None:
    found: list[Tensor] = []
    graph: Graph | None = None
    with Loader(larger, batch_size=BATCH, seed=1, device=cuda) as loader:
        for batch in (batch for _ in range(3) for batch in loader):
            if len(found) == step:
                graph = Graph(cuda, "thread_local")
            found.append(graph.replay(batch.images) if graph else weigh(batch.images))
    assert torch.equal(torch.stack(found).cpu(), weights_on_host(larger, 3))
