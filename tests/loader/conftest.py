"""Settings of all tests of Loaders.

Every Loader that reads directly does so for half of the rows, however much memory there is. Without an accelerator,
kernels run in Triton's interpreter, which Triton chooses when it is imported.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from decodeonce.loader import choose_reader
from decodeonce.loader.augment import fused

if not torch.accelerator.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def half_of_the_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_reader, "kept_share", lambda nbytes, memory: 0.5)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device on which Triton's kernels run."""
    pytest.importorskip("triton", reason="Triton comes only with torch's builds for accelerators")
    monkeypatch.setattr(fused, "_problems", {})
    if torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        assert found is not None
        yield torch.device(found.type, torch.accelerator.current_device_index())
        return
    monkeypatch.setattr(fused, "TYPES", ["cpu"])
    yield torch.device("cpu")
