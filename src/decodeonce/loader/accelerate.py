"""Tell Hugging Face's accelerate which epoch is running, as its own data loaders do.

`Accelerator.accumulate` makes a step at the end of an epoch, and `gather_for_metrics` drops padding, if the active
iterator has the attributes `end_of_dataloader` and `remainder`, as in accelerate.data_loader.DataLoaderStateMixin.
accelerate keeps weak references to the iterators of nested loops.
"""

from __future__ import annotations

import sys
from typing import Any

STATE = "accelerate.state"  # a program that has not imported this module does not use accelerate


def enter(epoch: object) -> None:
    """Make this epoch the active one."""
    state = _state()
    if state.active_dataloader is not epoch:
        others = [each for each in state.dataloader_references if each is not None and each is not epoch]
        state.dataloader_references = [None, *others, epoch]


def leave(epoch: object) -> None:
    """Make the epoch that was active before this one active again."""
    state = _state()
    state.dataloader_references = [each for each in state.dataloader_references if each is not epoch]


def _state() -> Any:
    return sys.modules[STATE].GradientState()
