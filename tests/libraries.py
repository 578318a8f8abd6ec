"""Import the libraries of transforms that tests compare with or apply."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.packages import NOT_DEV


def library(name: str) -> Any:
    """Import a module of torchvision, kornia or albumentations; skip the test without `make env`."""
    package = name.partition(".")[0]
    if not find_spec(package):
        pytest.skip(NOT_DEV.format(package))
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # otherwise it asks the network for a newer release
    if package == "torchvision" and not torch.version.cuda:
        define_operators()
    return importlib.import_module(name)


def define_operators() -> None:
    """Let PyPI's torchvision, which is built for CUDA, be imported with a CPU build of torch.

    Its operators cannot be loaded then, and the import fails at the first one that it looks up. No transform uses them.
    """
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
