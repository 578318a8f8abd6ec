"""Import torchvision, and the libraries that import it, in tests and benchmarks."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import Any


def load(name: str) -> Any:
    """Import a module of torchvision or of a library that may import it; ImportError if it is not installed."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # otherwise it asks the network for a newer release
    if find_spec("torchvision"):
        define_operators()
    return importlib.import_module(name)


def define_operators() -> None:
    """Let PyPI's torchvision, which is built for CUDA, be imported with a CPU build of torch.

    Its operators cannot be loaded then, and the import fails at the first one that it looks up. No transform uses them.
    """
    import torch

    for name in () if torch.version.cuda else ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
