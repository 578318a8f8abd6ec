"""Wait for events in other processes."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: Callable[[], str] | str, within: float = 60) -> None:
    """Wait until `condition` returns a true value; raise AssertionError with `what` after `within` seconds."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {within:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.01)
