"""Settings of all tests of Loaders.

Every Loader that reads directly does so for half of the rows, however much memory there is. Without an accelerator,
kernels run in Triton's interpreter, which Triton chooses when it is imported.
"""

import os

import pytest
import torch

from decodeonce.loader import choose_reader

if not torch.accelerator.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def half_of_the_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_reader, "kept_share", lambda nbytes, memory: 0.5)
