"""Waiting for what happens in another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: Callable[[], str] | str, within: float = 60) -> None:
    """Ask until the answer is true; AssertionError says what did not come about in so many seconds."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {within:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.01)
